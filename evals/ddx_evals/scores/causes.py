"""Scores the causes that `ddx why` names on incidents with known causes.

It is a quick check while writing playbooks: only causes and next checks count. `ddx evals run` scores whole answers,
and other systems besides ours. The first cause is right if it is the truth's `cause` or one that it accepts. A
diagnosis is *confidently wrong* if its verdict is `diagnosed` and its first cause is wrong, which is the worst answer.
An undecided one is *well asked* if its next check is the one that settled the incident, recognised by the truth's
words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ddx_evals.incidents import Incident, Truth
from ddx_evals.terminal.tables import ScoreTable
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Diagnosis, Verdict


@dataclass(frozen=True)
class CauseScore:
    """How one incident was judged."""

    incident: str
    cause: str
    verdict: str
    named: list[str] = field(default_factory=list)
    """The named causes with their probabilities, best first."""
    next_check: str = ""
    first: bool = False
    """Whether the right cause is first."""
    within_two: bool = False
    confidently_wrong: bool = False
    well_asked: bool | None = None
    """For an undecided answer whose truth says what settles it: whether that was asked; otherwise None."""


def score(incident: Incident) -> CauseScore:
    """Run `ddx why` on the whole material and score it against the truth."""
    return judged(incident.id, incident.truth, investigate([str(incident.material)]).diagnose())


def judged(incident: str, truth: Truth, said: Diagnosis) -> CauseScore:
    """Score a diagnosis against the truth."""
    right = {truth.cause, *truth.accept}
    causes = [candidate.id for candidate in said.causes]
    check = said.next_check
    asked = f"{check.probe} {check.question} {json.dumps(check.args)}" if check else ""
    if truth.cause in (Verdict.HEALTHY, Verdict.UNDECIDED):
        first = said.verdict == truth.cause
    else:
        first = bool(causes) and causes[0] in right
    can_be_asked_well = said.verdict == Verdict.UNDECIDED and truth.deciding_words != ""
    return CauseScore(
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


def summary(scores: Sequence[CauseScore]) -> dict[str, int]:
    """The number of incidents with each judgement."""
    return {
        "incidents": len(scores),
        "first": sum(each.first for each in scores),
        "within_two": sum(each.within_two for each in scores),
        "confidently_wrong": sum(each.confidently_wrong for each in scores),
        "undecided": sum(each.verdict == Verdict.UNDECIDED for each in scores),
        "well_asked": sum(each.well_asked is True for each in scores),
    }


def table(scores: Sequence[CauseScore], *, with_checks: bool = False) -> ScoreTable:
    """A table with one row per incident; with `with_checks`, also the next check."""
    columns = ["incident", "cause", "verdict", "right cause", "next check", "named", *(["asked next"] * with_checks)]
    rows = []
    for each in scores:
        place = "WRONG" if each.confidently_wrong else "first" if each.first else "second" if each.within_two else "-"
        asked = "" if each.well_asked is None else "well asked" if each.well_asked else "ASKED ELSE"
        row = [each.incident, each.cause, each.verdict, place, asked, ", ".join(each.named)]
        rows.append([*row, *([each.next_check] * with_checks)])
    return ScoreTable(columns, rows, text=len(columns))
