"""Judges how right `ddx why` is on each view of an incident.

An answer that needs verification is a *doubt*; see `ddx_evals.gate.doubts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import NamedTuple

from ddx_evals.baselines import Case
from ddx_evals.baselines.one_look import MOST_BYTES, MOST_CALLS, one_look
from ddx_evals.baselines.playbook import playbook
from ddx_evals.gate.doubts import doubts
from ddx_evals.gate.handed_in import doubts_of
from ddx_evals.incidents import Incident, View, staged_of, unpacked
from ddx_evals.incidents.causes_tree import above
from ddx_evals.scoring import efficiency, quotable_texts, score
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Diagnosis, Verdict, rank_list
from ddx_tools.sources.bundle import is_bundle


class Grade(StrEnum):
    """How right an answer is, best first."""

    PASSED = "passed"
    """Verdict, cause, culprits and a quoted key fact are right."""
    RIGHT = "right"
    """The verdict is right, and so is the first cause if one is wanted."""
    FIRST = "first"
    """Undecided with the right cause in first place, or more decided than the view allows and right by luck."""
    NODE = "node"
    """A cause above the right one in the tree."""
    OPEN = "open"
    """Otherwise undecided, which misleads nobody."""
    WRONG = "wrong"
    """A wrong diagnosis, or a faulty job called healthy."""


@dataclass(frozen=True)
class CaseOutcome:
    """The answer on one view of one incident, as texts for the table."""

    case: str
    """`split/id/view`"""
    verdict: str
    cause: str
    """The first named cause, or `-`."""
    culprits: str
    """The blamed ranks, hosts and devices, or `-`."""
    place: str
    """The first place named for them, or `-`."""
    grade: str
    localisation: str
    """0 to 1: how well the culprits fit the truth; `-` if it names none."""
    place_right: str
    """`yes`, `no`, or `-` if the truth has no place."""


class JudgedIncident(NamedTuple):
    """The outcome of an incident in each of its views."""

    outcomes: list[CaseOutcome]
    doubts: list[str]
    """What is doubtful in the answers: see `ddx_evals.gate.doubts`."""


def judge(incident: Incident) -> JudgedIncident:
    """Judge an incident in each of its views."""
    judged = JudgedIncident([], [])
    with unpacked(incident) as whole:
        for view in incident.views:
            # An unpacked bundle already has a neutral name.
            as_it_is = view is View.FULL and is_bundle(whole)
            with (
                nullcontext(whole) if as_it_is else staged_of(whole, incident, view) as material,
                Store() as store,
            ):
                case = Case(incident, view, material, store)
                answer = playbook(case).diagnosis
                outcome = _outcome(case, answer)
                judged.outcomes.append(outcome)
                told = chain(doubts(case, answer, store), doubts_of(case, store), _handed_on(case, outcome))
                judged.doubts.extend(f"{outcome.case}: {doubt}" for doubt in told)
    return judged


def _handed_on(case: Case, outcome: CaseOutcome) -> Iterator[str]:
    """Yield what an agent loses that only submits what it was given, and what extra calls cost."""
    answer = one_look(case)
    paid = efficiency(answer.transcript, ())
    if paid.calls > MOST_CALLS or paid.output_bytes > MOST_BYTES:
        yield f"one capture costs {paid.calls} calls and {paid.output_bytes} bytes"
    replayed = case.replayed.with_more(quotable_texts(answer.transcript))
    judged = score(case.truth, case.view, answer.diagnosis, replayed)
    if outcome.grade == Grade.PASSED and not judged.passed:
        yield f"submitted unchanged, it does not pass ({', '.join(judged.invented) or 'something was left out'})"


def _outcome(case: Case, answer: Diagnosis) -> CaseOutcome:
    judged = score(case.truth, case.view, answer, case.replayed)
    blamed = answer.culprits
    parties = [rank_list(blamed.ranks)] if blamed.ranks else []
    # The name of the machine that replays a recording is not part of the answer.
    parties += [*([] if blamed.ranks else blamed.hosts), *blamed.devices]
    return CaseOutcome(
        case=f"{case.incident.split}/{case.incident.id}/{case.view}",
        verdict=answer.verdict,
        cause=answer.causes[0].id if answer.causes else "-",
        culprits=" ".join(parties) or "-",
        place=blamed.locations[0].short() if blamed.locations else "-",
        grade=Grade.PASSED if judged.passed else _grade(case, answer),
        localisation="-" if judged.localisation is None else f"{judged.localisation:.2f}",
        place_right={True: "yes", False: "no", None: "-"}[judged.place],
    )


def _grade(case: Case, answer: Diagnosis) -> Grade:
    wanted, right = case.truth.views[case.view].verdict, case.truth.right_causes
    first = answer.causes[0].id if answer.causes else None
    if wanted is not Verdict.DIAGNOSED and answer.verdict is wanted:
        return Grade.RIGHT
    if first in right and answer.verdict is not Verdict.HEALTHY:
        return Grade.RIGHT if answer.verdict is wanted else Grade.FIRST
    if first in above(right):
        return Grade.NODE
    return Grade.OPEN if answer.verdict is Verdict.UNDECIDED else Grade.WRONG
