"""Scores `ddx why` on incidents whose cause is known: `python -m ddx_evals.incident_scores [DIRECTORY …]`.

It is the quick look while playbooks are written: only causes and next checks count. `ddx evals run` scores the whole
answer, and others beside ours. The first cause named is right if it is the truth's `cause` or one that it accepts. A
diagnosis is *confidently wrong* if its verdict is `diagnosed` and its first cause is not right: the worst answer there
is. An undecided one is *well asked* if its next check is what settled the incident, told by the words that the truth
names.
"""

from __future__ import annotations

import json
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ddx_evals.incidents import IncidentError, Truth, incident_directories, load_incident
from ddx_tools.investigate import investigate
from ddx_tools.model import Diagnosis, Verdict
from ddx_tools.resources import incidents_dir


@dataclass(frozen=True)
class IncidentScore:
    """How one incident was judged."""

    incident: str
    cause: str
    verdict: str
    named: list[str] = field(default_factory=list)
    """Causes, best first, with their probabilities."""
    next_check: str = ""
    first: bool = False
    """The right cause stands first."""
    within_two: bool = False
    confidently_wrong: bool = False
    well_asked: bool | None = None
    """Of an undecided one whose truth says what settles it; None for the others."""


def score(incident: Path) -> IncidentScore:
    """What `ddx why` says of the whole material, held against the truth."""
    found = load_incident(incident)
    return judged(found.id, found.truth, investigate([str(found.material)]).diagnose())


def judged(incident: str, truth: Truth, said: Diagnosis) -> IncidentScore:
    """A diagnosis held against the truth."""
    right = {truth.cause, *truth.accept}
    causes = [candidate.id for candidate in said.causes]
    check = said.next_check
    asked = f"{check.probe} {check.question} {json.dumps(check.args)}" if check else ""
    if truth.cause in (Verdict.HEALTHY, Verdict.UNDECIDED):
        first = said.verdict == truth.cause
    else:
        first = bool(causes) and causes[0] in right
    can_be_asked_well = said.verdict == Verdict.UNDECIDED and truth.deciding_words != ""
    return IncidentScore(
        incident=incident,
        cause=truth.cause,
        verdict=str(said.verdict),
        named=[f"{candidate.id} {candidate.probability:.2f}" for candidate in said.causes[:4]],
        next_check=asked,
        first=first,
        within_two=first or any(cause in right for cause in causes[:2]),
        confidently_wrong=said.verdict == Verdict.DIAGNOSED and not first,
        well_asked=bool(re.search(truth.deciding_words, asked, re.I)) if can_be_asked_well else None,
    )


def summary(scores: Sequence[IncidentScore]) -> dict[str, int]:
    """How many of the incidents were judged how."""
    return {
        "incidents": len(scores),
        "first": sum(each.first for each in scores),
        "within_two": sum(each.within_two for each in scores),
        "confidently_wrong": sum(each.confidently_wrong for each in scores),
        "undecided": sum(each.verdict == Verdict.UNDECIDED for each in scores),
        "well_asked": sum(each.well_asked is True for each in scores),
    }


def _lines(scores: Sequence[IncidentScore], *, verbose: bool) -> Iterator[str]:
    for each in scores:
        mark = "WRONG" if each.confidently_wrong else "first" if each.first else "second" if each.within_two else "-"
        asked = "" if each.well_asked is None else " well asked" if each.well_asked else " ASKED ELSE"
        yield f"{each.incident:44} {each.cause:28} {each.verdict:10} {mark:7}{asked:11} {', '.join(each.named)}"
        if verbose:
            yield f"    next: {each.next_check}"
    yield ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in summary(scores).items())


def main(arguments: Sequence[str] | None = None) -> int:
    """Score incidents and print a line each. 0 if none was confidently wrong."""
    asked = _asked(arguments)
    try:
        scores = [score(incident) for incident in incident_directories(asked.directories)]
    except IncidentError as error:
        print(error, file=sys.stderr)
        return 2
    if asked.json:
        print(json.dumps({"summary": summary(scores), "incidents": [asdict(each) for each in scores]}, indent=1))
    else:
        print("\n".join(_lines(scores, verbose=asked.verbose)))
    return int(any(each.confidently_wrong for each in scores))


def _asked(arguments: Sequence[str] | None) -> Namespace:
    parser = ArgumentParser(prog="python -m ddx_evals.incident_scores", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directories", type=Path, nargs="*", help="incidents, or directories of them")
    parser.add_argument("--verbose", action="store_true", help="print the next check of each as well")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    asked.directories = asked.directories or [incidents_dir() / "public"]
    return asked


if __name__ == "__main__":
    sys.exit(main())
