"""The figures of a run, and how another run differs."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from pydantic import ValidationError

from ddx_tools.evidence.store import Store
from ddx_tools.investigation.result import Investigation
from ddx_tools.investigation.run import investigate
from ddx_tools.model.baseline import Baseline, Spread
from ddx_tools.model.errors import UsageError

_MOST_BYTES = 1 << 20
_OF_ONE_RUN = ("RANK", "LOCAL_RANK", "GROUP_RANK", "MASTER_PORT", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "DDX_RUN_DIR")
"""Variables whose values differ between runs or ranks by design."""
_FEWEST_STEPS = 3
_APART, _MEMORY_APART = 1.2, 1.1
"""Medians are reported only if they differ by this factor and one is outside the other's 10th to 90th percentile."""

_VARIABLES = """
SELECT name, any_value(coalesce(value, shown)) AS value FROM env_values
WHERE coalesce(value, shown) IS NOT NULL AND kind = 'process'
GROUP BY name HAVING count(DISTINCT coalesce(value, shown)) = 1
"""
_WORLD = """
SELECT max(size) AS size FROM (
    SELECT world_size AS size FROM ranks UNION ALL SELECT world_size FROM fr_dumps
    UNION ALL SELECT world_size FROM trace_ranks
    UNION ALL SELECT count(DISTINCT rank) FROM log_events HAVING count(DISTINCT rank) = max(rank) + 1)
"""
_MESH = (
    "SELECT dimension, max(coordinate) + 1 AS size FROM mesh GROUP BY ALL HAVING count(DISTINCT plan) = 1 ORDER BY 1"
)
_RECORDED_MESH = """
SELECT substr(description, 6) AS dimension, any_value(len(members)) AS size FROM fr_groups
WHERE starts_with(description, 'mesh_') AND members IS NOT NULL
GROUP BY ALL HAVING count(DISTINCT len(members)) = 1 ORDER BY 1 LIMIT 16
"""
"""A DeviceMesh gives the groups of its axis tp the description `mesh_tp` (torch 2.13 distributed/device_mesh.py)."""
_LINKS = "SELECT coalesce(network, transport) AS way, sum(channels) AS channels FROM nccl_edges GROUP BY ALL ORDER BY 1"
_RINGS = """
WITH widest AS (SELECT communicator FROM nccl_ranks ORDER BY nranks DESC NULLS LAST, communicator LIMIT 1)
SELECT channel, any_value(graph) AS graph FROM nccl_graphs JOIN widest USING (communicator)
WHERE kind = 'ring' AND channel IS NOT NULL GROUP BY channel HAVING count(DISTINCT graph) = 1 ORDER BY channel LIMIT 32
"""
_TRACED_STEPS = "SELECT step_ns / 1e9 AS step_s FROM trace_steps WHERE step IS NOT NULL AND step_ns IS NOT NULL"
_PRINTED_STEPS = (
    "SELECT details->'points' AS points FROM log_events WHERE kind = 'step' AND (details->'points') IS NOT NULL"
)
_STRETCHES = """
SELECT max(step) - min(step) AS steps, max(time_s) - min(time_s) AS seconds FROM (
    SELECT source, attempt, rank, time_s, TRY_CAST(details->>'step' AS BIGINT) AS step FROM log_events
    WHERE kind = 'step' AND time_s IS NOT NULL)
WHERE step IS NOT NULL GROUP BY source, attempt, rank ORDER BY steps DESC, seconds LIMIT 1
"""
_PRINTED_LINES = """
WITH steps AS (
    SELECT k.template FROM kept_lines k JOIN log_events e ON k.source = e.source AND k.line = e.source_line
    WHERE e.kind = 'step')
SELECT path, text FROM kept_lines WHERE template IN (SELECT template FROM steps) ORDER BY path, line
"""
_COLLECTIVES = """
SELECT median(times) AS times FROM (
    SELECT count(*) AS times FROM trace_collectives WHERE step IS NOT NULL GROUP BY rank, step)
"""
_MEMORY = """
SELECT max(bytes) AS bytes FROM (SELECT peak_bytes AS bytes FROM memory_series
    UNION ALL SELECT peak_bytes FROM memory_devices)
"""
_RATE = re.compile(
    r"\b(?P<name>(?:tok(?:en)?s?|samples?|images?|imgs?|seq(?:uence)?s?|it(?:eration)?s?|steps?|frames?)"
    r"(?:/s(?:ec)?|[_ ]per[_ ]s(?:econds?|ec)?)(?:/(?:gpu|device|rank))?|tps|tgs|throughput|t?flops|mfu)\b"
    r"[^\d\n]{0,12}?"
    r"(?P<value>\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)|(?P<first>\d[\d,]*(?:\.\d+)?)\s?"
    r"(?P<unit>(?:tok(?:en)?s?|samples?|images?|imgs?|it)/s)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class BaselineDifference:
    """One difference between two runs; the values are texts with their unit."""

    what: str
    here: str
    there: str


def baseline_of(store: Store, found: Investigation, place: Path) -> Baseline:
    """The figures of an investigated run, computed from the rows in the store."""
    said = found.diagnose()
    variables = {row["name"]: row["value"] for row in store.query(_VARIABLES) if row["name"] not in _OF_ONE_RUN}
    return Baseline(
        place=str(place),
        verdict=said.verdict,
        headline=said.headline,
        ended_well_s=_ended_well_s(place),
        versions={name: str(version) for name, version in sorted(found.versions.items())},
        settings=dict(sorted(variables.items())),
        world_size=store.query(_WORLD)[0]["size"],
        mesh={row["dimension"]: row["size"] for row in store.query(_MESH) or store.query(_RECORDED_MESH)},
        links={row["way"]: row["channels"] for row in store.query(_LINKS) if row["way"] and row["channels"]},
        rings={str(row["channel"]): row["graph"] for row in store.query(_RINGS)},
        step_s=_spread(_step_times(store)) or _between_steps(store),
        rates=_rates(store),
        collectives_per_step=store.query(_COLLECTIVES)[0]["times"],
        memory_peak_bytes=store.query(_MEMORY)[0]["bytes"],
    )


def read_baseline(place: Path, progress: Callable[[str], None] = lambda _: None) -> Baseline:
    """Read the figures of a run from a file of `ddx baseline`, or from the run's bundle, logs or records.

    Raises `UsageError` if `place` is neither.
    """
    if (kept := _kept(place)) is not None:
        return kept
    progress("reading the baseline run")
    with Store() as store:
        return baseline_of(store, investigate([str(place)], store=store), place)


def baseline_differences(here: Baseline, there: Baseline) -> Iterator[BaselineDifference]:
    """Yield how `there` differs from `here`, most important first: speed, memory, job layout, versions, settings.

    Values that only one of them reports are left out: they may be the same in the other.
    """
    yield from _spreads_apart("step time", "s", here.step_s, there.step_s)
    for name in sorted(here.rates.keys() & there.rates.keys()):
        yield from _spreads_apart(name, "", here.rates[name], there.rates[name])
    mine, other = here.memory_peak_bytes, there.memory_peak_bytes
    if mine and other and max(mine, other) > _MEMORY_APART * min(mine, other):
        yield BaselineDifference("peak memory", f"{mine / 2**30:.2f} GiB", f"{other / 2**30:.2f} GiB")
    for what, own, its in (
        ("collectives per step", here.collectives_per_step, there.collectives_per_step),
        ("world size", here.world_size, there.world_size),
    ):
        if own is not None and its is not None and own != its:
            yield BaselineDifference(what, f"{own:g}", f"{its:g}")
    for kind, ours, theirs in (
        ("mesh dimension ", here.mesh, there.mesh),
        ("channels over ", here.links, there.links),
        ("ring of channel ", here.rings, there.rings),
        ("", here.versions, there.versions),
        ("", here.settings, there.settings),
    ):
        yield from _values_apart(kind, ours, theirs)


def figures_of_both(here: Baseline, there: Baseline) -> list[str]:
    """The kinds of figures that both runs report, in words: only these can differ."""
    pairs = {
        "step time": (here.step_s, there.step_s),
        "rates": (here.rates, there.rates),
        "peak memory": (here.memory_peak_bytes, there.memory_peak_bytes),
        "collectives per step": (here.collectives_per_step, there.collectives_per_step),
        "world size": (here.world_size, there.world_size),
        "mesh": (here.mesh, there.mesh),
        "channels": (here.links, there.links),
        "rings": (here.rings, there.rings),
        "versions": (here.versions, there.versions),
        "settings": (here.settings, there.settings),
    }
    return [name for name, (own, its) in pairs.items() if own and its]


def figure(value: float) -> str:
    """Format a number for a person: four significant digits, no exponent."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _values_apart(
    kind: str, here: Mapping[str, int | str], there: Mapping[str, int | str]
) -> Iterator[BaselineDifference]:
    for name in sorted(here.keys() & there.keys()):
        if here[name] != there[name]:
            yield BaselineDifference(f"{kind}{name}", str(here[name]), str(there[name]))


def _spreads_apart(what: str, unit: str, here: Spread | None, there: Spread | None) -> Iterator[BaselineDifference]:
    if here is None or there is None or min(here.median, there.median) <= 0:
        return
    far = max(here.median, there.median) > _APART * min(here.median, there.median)
    if far and not there.low <= here.median <= there.high:
        own, its = (f"{figure(one.median)} {unit}".rstrip() for one in (here, there))
        yield BaselineDifference(what, own, its)


def _kept(place: Path) -> Baseline | None:
    """Parse a file of `ddx baseline`; None for any other file."""
    try:
        if not place.is_file() or place.stat().st_size > _MOST_BYTES:
            return None
        data = place.read_bytes()
    except OSError as error:
        raise UsageError(f"{place}: {error.strerror or error}", "Name a run, or a file of ddx baseline.") from error
    if b"ddx.baseline/" not in data[:200]:
        return None
    try:
        return Baseline.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "its text"
        raise UsageError(
            f"{place} is not a baseline that this version can read: {where}: {first['msg']}",
            "Write it again: ddx baseline RUN.",
        ) from error


def _ended_well_s(place: Path) -> float | None:
    """The duration of a `ddx run`, in seconds, if its directory says that it exited with code 0; otherwise None."""
    try:
        with (place / "run.json").open("rb") as file:
            told = json.loads(file.read(_MOST_BYTES))
        well = told["exit_code"] == 0 and not isinstance(told["exit_code"], bool)
        return max(0.0, float(told["ended_at_s"]) - float(told["started_at_s"])) if well else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _step_times(store: Store) -> list[float]:
    """The seconds of each step, as the profiler recorded them, or else between log lines that print steps."""
    if traced := [row["step_s"] for row in store.query(_TRACED_STEPS)]:
        return traced
    taken = []
    for row in store.query(_PRINTED_STEPS):
        points = json.loads(row["points"])
        taken += [seconds for _, seconds in points if isinstance(seconds, int | float)]
    return taken


def _between_steps(store: Store) -> Spread | None:
    """The mean step time over the longest stretch between two log lines that have step and time."""
    for row in store.query(_STRETCHES):
        if row["steps"] >= _FEWEST_STEPS and row["seconds"] > 0:
            mean = row["seconds"] / row["steps"]
            return Spread(median=mean, low=mean, high=mean, count=row["steps"])
    return None


def _rates(store: Store) -> dict[str, Spread]:
    values: dict[str, list[float]] = defaultdict(list)
    for row in store.query(_PRINTED_LINES):
        for found in _RATE.finditer(row["text"]):
            name = (found["name"] or found["unit"]).lower()
            values[name].append(float((found["value"] or found["first"]).replace(",", "")))
    spreads = {name: _spread(those) for name, those in sorted(values.items())}
    return {name: spread for name, spread in spreads.items() if spread is not None}


def _spread(values: list[float]) -> Spread | None:
    if len(values) < _FEWEST_STEPS:
        return None
    tenths = quantiles(values, n=10, method="inclusive")
    return Spread(median=median(values), low=tenths[0], high=tenths[-1], count=len(values))
