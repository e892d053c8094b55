"""Our scores as Inspect scorers: whether an answer passes, and separately how right it is."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from inspect_ai.scorer import (
    CORRECT,
    INCORRECT,
    NOANSWER,
    Score,
    Scorer,
    Target,
    accuracy,
    mean,
    scorer,
    stderr,
)
from inspect_ai.solver import TaskState

from ddx_evals.baselines import Answer, Case
from ddx_evals.incidents import View, load_incident, staged
from ddx_evals.inspect_tasks.solver import KEPT, Kept
from ddx_evals.results.run import CaseResult
from ddx_evals.results.suite import failed, scored
from ddx_evals.scoring import Transcript
from ddx_tools.model.diagnosis import Diagnosis

RESULT = "result"
"""The metadata key of an outcome's `CaseResult`."""
_CLUSTER = "incident"
"""The metadata key for clustering: the views and tries of an incident are not independent."""


@scorer(metrics=[accuracy(), stderr(cluster=_CLUSTER)])
def outcome() -> Scorer:
    """Scorer: cause and place are right and grounded (or healthy, or undecided and well asked, if that is right)."""

    async def judge(state: TaskState, target: Target) -> Score:
        result = _result(state)
        metadata = {RESULT: result.model_dump(mode="json")}
        if result.score is None:
            return Score(value=NOANSWER, explanation=result.error, metadata=metadata)
        named = ", ".join(result.named) or str(result.score.verdict)
        value = CORRECT if result.score.passed else INCORRECT
        return Score(value=value, answer=named, explanation=result.score.model_dump_json(indent=1), metadata=metadata)

    return judge


@scorer(metrics={"*": [mean(), stderr(cluster=_CLUSTER)]})
def graded() -> Scorer:
    """Scorer: the parts of the score, from 0 to 1; none for a run without an answer."""

    async def judge(state: TaskState, target: Target) -> Score:
        told = _result(state).score
        return Score(
            value={
                "score": told.score if told else 0.0,
                "verdict": float(told.verdict_right) if told else 0.0,
                "cause": told.cause if told else 0.0,
                "confidently_wrong": float(told.confidently_wrong) if told else 0.0,
                "invented": float(bool(told.invented)) if told else 0.0,
                "harmful": float(bool(told.harmful)) if told else 0.0,
            }
        )

    return judge


def _result(state: TaskState) -> CaseResult:
    kept = Kept.model_validate(state.store.get(KEPT) or {})
    return _judged(state.metadata["where"], View(state.metadata["view"]), kept.model_dump_json())


@lru_cache(maxsize=4)
def _judged(where: str, view: View, kept_json: str) -> CaseResult:
    """The result of one answer, cached because both scorers need it."""
    kept, case = Kept.model_validate_json(kept_json), _case(where, view)
    if kept.diagnosis is None:
        result = failed(case, "", "no diagnosis was reported")
    else:
        transcript = Transcript(calls=kept.calls)
        result = scored(case, "", Answer(Diagnosis.model_validate_json(kept.diagnosis), transcript))
    return result.model_copy(update={"unsealed": kept.unsealed})


@lru_cache(maxsize=4)
def _case(where: str, view: View) -> Case:
    """A case with all quotable text already read, so that later epochs do not need the material."""
    incident = load_incident(Path(where))
    with staged(incident, view) as material:
        case = Case(incident, view, material)
        assert case.replayed
    return case
