"""Scores one answer to one view of one incident, in code without a judge."""

from __future__ import annotations

import json
import re

from pydantic import BaseModel, ConfigDict

from ddx_evals.incidents.truth import RightAnswer, Truth, View
from ddx_evals.scoring.calibration import brier, is_established
from ddx_evals.scoring.grounding import Replayed, grounding
from ddx_evals.scoring.harmful import harmful_advice
from ddx_evals.scoring.localisation import localisation, place_is_named, wrongly_blamed
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.model.diagnosis import Diagnosis, Verdict

SAME_CATEGORY = 0.5
_CAUSE, _PLACE, _GROUNDING = 0.5, 0.3, 0.2
"""Weights in the score of a right verdict `diagnosed`; without culprits to name, their weight goes to the cause."""
_UNDECIDED_FOR_A_DIAGNOSIS = 0.5
_UNASKED = 0.5
_HARMFUL = 0.5


class CaseScore(BaseModel):
    """The score of one answer. All shares are from 0 to 1."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    verdict: Verdict
    verdict_right: bool
    cause: float
    """1 for a right cause in first place, ½ for another of its category; for healthy and undecided, by the verdict."""
    localisation: float | None
    """None if no rank is to blame, or not in this view."""
    place: bool | None
    """Whether a right line or function is named; None if the truth has none."""
    wrongly_blamed: list[int]
    quotes: int
    invented: list[str]
    """Quotes that are not in the replayed material."""
    grounded: bool
    brier: float | None
    confidently_wrong: bool
    """Whether the verdict is `diagnosed` and the first cause is wrong, which is the worst answer."""
    asked_well: bool | None
    """For an undecided answer: whether its next check is the one that settles it. None if the truth has no such
    words."""
    harmful: list[str]
    passed: bool
    """Whether cause and place are right and grounded (or: healthy, or undecided and well asked, if that is right)."""
    score: float


def score(truth: Truth, view: View, answer: Diagnosis, replayed: Replayed) -> CaseScore:
    """Score an answer against the truth.

    The score is 0 for an invented quote, and for a wrong diagnosis called established; harmful advice halves it.
    `replayed` is the text that the answer may quote.
    """
    right = truth.views[view]
    first_is_right = _first_cause_is_right(truth, answer)
    quoted = grounding(answer.evidence, truth.evidence, replayed)
    harmful = harmful_advice(answer, truth)
    has_culprits = right.verdict is Verdict.DIAGNOSED
    located = localisation(answer.culprits, truth.culprits, truth.layout) if has_culprits else None
    asked_well = _asked_well(truth, right, answer)
    may_stay_open = asked_well is not False
    verdict_right = answer.verdict is right.verdict
    cause = _cause(truth, right, answer)
    settled = {
        Verdict.DIAGNOSED: cause == 1 and located in (None, 1) and quoted.grounded,
        Verdict.HEALTHY: not answer.culprits.ranks,
        Verdict.UNDECIDED: may_stay_open,
    }[right.verdict]
    wrong = answer.verdict is Verdict.DIAGNOSED and not first_is_right
    lucky = answer.verdict is Verdict.DIAGNOSED and first_is_right
    share = _share(right, answer, cause, located, grounded=quoted.grounded, asked_well=may_stay_open, lucky=lucky)
    if quoted.invented or (wrong and is_established(answer)):
        share = 0.0
    return CaseScore(
        verdict=answer.verdict,
        verdict_right=verdict_right,
        cause=cause,
        localisation=located,
        place=_place(truth, answer),
        wrongly_blamed=wrongly_blamed(answer.culprits, truth.culprits),
        quotes=quoted.quotes,
        invented=quoted.invented,
        grounded=quoted.grounded,
        brier=brier(answer, right=first_is_right),
        confidently_wrong=wrong,
        asked_well=asked_well,
        harmful=harmful,
        passed=verdict_right and settled and not quoted.invented and not harmful,
        score=share * (_HARMFUL if harmful else 1.0),
    )


def _first_cause_is_right(truth: Truth, answer: Diagnosis) -> bool:
    if answer.verdict is Verdict.HEALTHY:
        return truth.cause == Verdict.HEALTHY
    return bool(answer.causes) and answer.causes[0].id in truth.right_causes


def _cause(truth: Truth, right: RightAnswer, answer: Diagnosis) -> float:
    if right.verdict is not Verdict.DIAGNOSED:
        return float(answer.verdict is right.verdict)
    if answer.verdict is Verdict.HEALTHY or not answer.causes:
        return 0.0
    first = answer.causes[0].id
    if first in truth.right_causes:
        return 1.0
    pages = load_playbooks().causes
    right_categories = {pages[cause].category for cause in truth.right_causes if cause in pages}
    return SAME_CATEGORY if first in pages and pages[first].category in right_categories else 0.0


def _asked_well(truth: Truth, right: RightAnswer, answer: Diagnosis) -> bool | None:
    wanted = right.check or truth.deciding_words
    if answer.verdict is not Verdict.UNDECIDED or not wanted:
        return None
    check = answer.next_check
    asked = f"{check.probe} {check.question} {json.dumps(check.args)}" if check else ""
    return bool(asked and re.search(wanted, asked, re.I))


def _place(truth: Truth, answer: Diagnosis) -> bool | None:
    places = truth.culprits.locations
    return place_is_named(answer.culprits.locations, places) if places else None


def _share(
    right: RightAnswer,
    answer: Diagnosis,
    cause: float,
    located: float | None,
    *,
    grounded: bool,
    asked_well: bool,
    lucky: bool,
) -> float:
    """The score of an answer before deductions for invention and harm."""
    if right.verdict is Verdict.DIAGNOSED:
        if answer.verdict is Verdict.HEALTHY:
            return 0.0
        place = cause if located is None else located
        whole = _CAUSE * cause + _PLACE * place + _GROUNDING * (cause if grounded else 0.0)
        return whole * (_UNDECIDED_FOR_A_DIAGNOSIS if answer.verdict is Verdict.UNDECIDED else 1.0)
    if right.verdict is Verdict.UNDECIDED and answer.verdict is Verdict.UNDECIDED:
        return 1.0 if asked_well else _UNASKED
    if answer.verdict is right.verdict:
        return 0.0 if answer.culprits.ranks else 1.0
    # Asking about a healthy job costs half. A cause that this view cannot show is luck even if it is right.
    return _UNASKED if answer.verdict is Verdict.UNDECIDED or lucky else 0.0
