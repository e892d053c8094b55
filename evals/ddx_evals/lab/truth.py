"""The truth about one run of a scenario, with places resolved to lines of the copy that ran."""

from dataclasses import dataclass
from pathlib import Path

from ddx_evals.lab.scenario import Scenario, ScenarioError, Verdict, scenario_file


@dataclass(frozen=True)
class SourceLine:
    """A source line that counts as the place: `file` is relative to the job's directory, `line` from 1."""

    file: str
    line: int
    text: str


@dataclass(frozen=True)
class RunTruth:
    """The right answer about a run.

    `causes`: accepted ids, best first. `culprits`: the accepted sets of ranks, best first. Both are empty if naming a
    culprit would be wrong. `places`: any one of them is right; empty if the scenario has no line to name.
    """

    verdicts: tuple[Verdict, ...]
    causes: tuple[str, ...]
    culprits: tuple[frozenset[int], ...]
    places: tuple[SourceLine, ...]
    asks_about: frozenset[int] = frozenset()
    """The ranks that the next check must name."""
    hosts: tuple[str, ...] = ()
    """The job's hosts that are to blame."""


def resolve_truth(scenario: Scenario, nproc: int, step: int, workdir: Path) -> RunTruth:
    """The truth for `nproc` ranks, given the prepared copy in `workdir`. Raises ScenarioError."""
    expected = scenario.truth
    to_fix = f"Fix `truth` in {scenario_file(scenario.id)}."
    if expected.culprits and nproc not in expected.culprits:
        raise ScenarioError(f"scenario {scenario.id}: its culprits are not defined for {nproc} ranks", to_fix)
    places: list[SourceLine] = []
    for place in expected.places:
        wanted = scenario.fill(place.contains, nproc, step)
        file = workdir / place.file
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        found = [
            SourceLine(place.file, number, line.strip())
            for number, line in enumerate(lines, 1)
            if wanted in line and line.strip()
        ]
        if not found:
            raise ScenarioError(f"scenario {scenario.id}: no line of {place.file} contains {wanted!r}", to_fix)
        places.extend(found)
    return RunTruth(
        verdicts=expected.verdicts,
        causes=expected.causes,
        culprits=tuple(frozenset(ranks) for ranks in expected.culprits.get(nproc, ())),
        places=tuple(places),
        asks_about=frozenset(scenario.ranks[nproc][name] for name in expected.asks_about),
        hosts=expected.hosts,
    )
