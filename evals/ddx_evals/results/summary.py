"""The figures of a system on a split and a view."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

from pydantic import BaseModel, ConfigDict

from ddx_evals.incidents import View
from ddx_evals.results.run import CaseKey, CaseResult
from ddx_evals.scoring.aggregate import clustered_standard_error, mean, mean_pass_hat_k
from ddx_tools.model.diagnosis import Verdict

GREP = "grep"
"""The baseline that decides which cases are easy."""


class Summary(BaseModel):
    """One line of the table. Shares are of the scored tries unless stated otherwise."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str
    arm: str
    """The agent's arm; "" for a baseline."""
    unsealed: bool
    """Whether it could have seen the truth, so that it is not ranked."""
    split: str
    view: View
    tries: int
    scored: int
    """Tries with an answer; the others failed."""
    passed: float
    passed_of_all: float
    """The share of all tries, including failed ones."""
    passed_not_easy: float | None
    """The share of scored tries on cases that `grep` does not solve; None if `grep` did not run."""
    passed_error: float | None
    """Standard error of `passed`, clustered by incident."""
    pass_hat_k: float | None
    """The estimated share of cases whose k tries all pass; k is the number of epochs."""
    epochs: int
    score: float
    right_verdict: float
    cause: float
    localisation: float | None
    """The mean over cases with culprits."""
    grounded: float | None
    """The share among verdicts `diagnosed`."""
    brier: float | None
    confidently_wrong: int
    false_alarms: int
    """Diagnoses of healthy jobs."""
    invented: int
    """Answers with an invented quote."""
    harmful: int
    calls: float
    output_bytes: float
    """Mean tool output per try."""
    guessed: int
    """Answers without any tool call."""
    seconds: float | None
    right_after_s: float | None
    """For live jobs: the mean time to the right answer, if there was one."""

    @property
    def name(self) -> str:
        """The system with its arm."""
        return f"{self.system} [{self.arm}]" if self.arm else self.system


def summaries(results: Iterable[CaseResult]) -> list[Summary]:
    """One summary per system, arm, split and view, in the order of the results, unsealed ones last."""
    results = list(results)
    easy = easy_cases(results) if any(result.system == GREP for result in results) else None
    grouped: dict[tuple[str, View, bool, str, str], list[CaseResult]] = defaultdict(list)
    for result in results:
        grouped[result.split, result.view, result.unsealed, result.system, result.arm].append(result)
    order = list(View)
    keys = sorted(grouped, key=lambda key: (key[0], order.index(key[1]), key[2]))
    return [_summary(grouped[key], easy) for key in keys]


def easy_cases(results: Iterable[CaseResult]) -> set[CaseKey]:
    """The cases that `grep` solves, for which reading one line is enough."""
    return {each.case for each in results if each.system == GREP and each.score and each.score.passed}


def _summary(rows: Sequence[CaseResult], easy: set[CaseKey] | None) -> Summary:
    scores = [row.score for row in rows if row.score]
    took = [row.efficiency for row in rows if row.efficiency]
    outcomes: dict[Hashable, list[bool]] = defaultdict(list)
    for row in rows:
        outcomes[row.incident].append(bool(row.score and row.score.passed))
    epochs = min(map(len, outcomes.values()))
    diagnosed = [each for each in scores if each.verdict is Verdict.DIAGNOSED]
    located = [each.localisation for each in scores if each.localisation is not None]
    passes = sum(each.passed for each in scores)
    return Summary(
        system=rows[0].system,
        arm=rows[0].arm,
        unsealed=rows[0].unsealed,
        split=rows[0].split,
        view=rows[0].view,
        tries=len(rows),
        scored=len(scores),
        passed=passes / len(scores) if scores else 0.0,
        passed_of_all=passes / len(rows),
        passed_not_easy=mean(
            float(row.score.passed) for row in rows if easy is not None and row.score and row.case not in easy
        ),
        passed_error=clustered_standard_error((r.incident, float(r.score.passed)) for r in rows if r.score),
        pass_hat_k=mean_pass_hat_k(outcomes, epochs) if epochs > 1 else None,
        epochs=epochs,
        score=mean(each.score for each in scores) or 0.0,
        right_verdict=mean(float(each.verdict_right) for each in scores) or 0.0,
        cause=mean(each.cause for each in scores) or 0.0,
        localisation=mean(located),
        grounded=mean(float(each.grounded) for each in diagnosed),
        brier=mean(each.brier for each in scores if each.brier is not None),
        confidently_wrong=sum(each.confidently_wrong for each in scores),
        false_alarms=sum(
            row.truth == Verdict.HEALTHY and row.score.verdict is Verdict.DIAGNOSED for row in rows if row.score
        ),
        invented=sum(bool(each.invented) for each in scores),
        harmful=sum(bool(each.harmful) for each in scores),
        calls=mean(each.calls for each in took) or 0.0,
        output_bytes=mean(each.output_bytes for each in took) or 0.0,
        guessed=sum(each.guessed for each in took),
        seconds=mean(each.seconds for each in took if each.seconds is not None),
        right_after_s=mean(each.right_after_s for each in rows if each.right_after_s is not None),
    )
