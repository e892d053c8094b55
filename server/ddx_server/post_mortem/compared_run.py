"""Another run of the job beside the one that failed: whether it is well, and what is set otherwise there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ddx_tools.evidence.store import Store
from ddx_tools.investigation.result import Investigation
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Diagnosis, Verdict

_MOST_DIFFERENCES = 20
_OF_ONE_RUN = ("RANK", "LOCAL_RANK", "GROUP_RANK", "MASTER_PORT", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "DDX_RUN_DIR")
"""What is another value in each run, or on each rank."""


@dataclass(frozen=True)
class RunSettings:
    """What a run was started with, as far as all its ranks have the same."""

    values: Mapping[str, str]


@dataclass(frozen=True)
class ComparedRun:
    """Another run, judged like the first."""

    place: str
    said: Diagnosis
    settings: RunSettings
    differences: list[tuple[str, str, str]]
    """What is otherwise: its name, its value in the failed run, its value in this one; "" for not known."""
    left_out: int
    ended_well_s: float | None = None
    """`ddx run` noted exit code 0 after so many seconds."""

    @property
    def is_well(self) -> bool:
        """Whether it is a proof: seen to be healthy, or ended well without anything that speaks against it."""
        ended_well = self.ended_well_s is not None and self.said.verdict is not Verdict.DIAGNOSED
        return self.said.verdict is Verdict.HEALTHY or ended_well

    @property
    def says(self) -> str:
        """What is known of it, as a sentence without its end."""
        if self.said.verdict is not Verdict.HEALTHY and self.is_well:
            return f"it ran for {self.ended_well_s:.0f} s and ended with exit code 0, as its run.json says"
        return f"ddx why says {self.said.verdict.upper()}: {self.said.headline}"


_MOST_BYTES = 1 << 20


def _ended_well_s(place: Path) -> float | None:
    """How long a run of `ddx run` took, seconds, if its directory says that it ended with exit code 0."""
    try:
        with (place / "run.json").open("rb") as file:
            told = json.loads(file.read(_MOST_BYTES))
        well = told["exit_code"] == 0 and not isinstance(told["exit_code"], bool)
        return max(0.0, float(told["ended_at_s"]) - float(told["started_at_s"])) if well else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


_VARIABLES = """
SELECT name, any_value(coalesce(value, shown)) AS value FROM env_values
WHERE coalesce(value, shown) IS NOT NULL AND kind = 'process'
GROUP BY name HAVING count(DISTINCT coalesce(value, shown)) = 1
"""
_WORLD = "SELECT max(world_size) AS size FROM (SELECT world_size FROM ranks UNION ALL SELECT world_size FROM fr_dumps)"


def settings_of(store: Store, found: Investigation) -> RunSettings:
    """The versions, the variables and the size of a run."""
    values = {name: str(version) for name, version in found.versions.items()}
    values |= {row["name"]: row["value"] for row in store.query(_VARIABLES) if row["name"] not in _OF_ONE_RUN}
    if size := store.query(_WORLD)[0]["size"]:
        values["world size"] = str(size)
    return RunSettings(values)


def compared_run(place: Path, failed: RunSettings, progress: Callable[[str], None]) -> ComparedRun:
    """A bundle, logs or records of another run, beside the settings of the failed one. Raises UsageError."""
    with Store() as store:
        found = investigate([str(place)], progress=progress, store=store)
        said, settings = found.diagnose(), settings_of(store, found)
    differences = list(_differences(failed.values, settings.values))
    left_out = max(0, len(differences) - _MOST_DIFFERENCES)
    shown = differences[:_MOST_DIFFERENCES]
    return ComparedRun(str(place), said, settings, shown, left_out, _ended_well_s(place))


def _differences(failed: Mapping[str, str], other: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    # What only one of them tells may be the same in the other.
    for name in sorted(failed.keys() & other.keys()):
        if failed[name] != other[name]:
            yield name, failed[name], other[name]
