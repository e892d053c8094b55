"""Compares two runs case by case: an unchanged mean may hide ten cases that swapped places."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddx_evals.results.run import CaseResult

SystemCaseKey = tuple[str, str, str, str]
"""System, split, incident, view."""


@dataclass(frozen=True)
class CaseChange:
    """One case whose pass rate or score changed."""

    case: SystemCaseKey
    passed_before: float
    passed_now: float
    score_before: float
    score_now: float

    @property
    def gained(self) -> bool:
        """Whether the case is better now."""
        return (self.passed_now, self.score_now) > (self.passed_before, self.score_before)


@dataclass(frozen=True)
class Comparison:
    """The differences between two runs."""

    changes: list[CaseChange]
    unchanged: int
    only_before: list[SystemCaseKey]
    only_now: list[SystemCaseKey]
    renamed: tuple[str, str] | None = None
    """The systems before and now, if each run has only one and their names differ."""


def compare(before: Sequence[CaseResult], now: Sequence[CaseResult]) -> Comparison:
    """Compare two runs; a failed try counts as not passed, with score 0.

    If each run has only one system, these are compared whatever their names.
    """
    renamed = _renamed(before, now)
    if renamed:
        before = [result.model_copy(update={"system": renamed[1]}) for result in before]
    old, new = _by_case(before), _by_case(now)
    common = [case for case in old if case in new]
    changes = [CaseChange(case, old[case][0], new[case][0], old[case][1], new[case][1]) for case in common]
    changed = [change for change in changes if old[change.case] != new[change.case]]
    return Comparison(
        changes=sorted(changed, key=lambda change: (change.gained, change.case)),
        unchanged=len(common) - len(changed),
        only_before=[case for case in old if case not in new],
        only_now=[case for case in new if case not in old],
        renamed=renamed,
    )


def _renamed(before: Sequence[CaseResult], now: Sequence[CaseResult]) -> tuple[str, str] | None:
    names = tuple({result.system for result in results} for results in (before, now))
    if any(len(each) != 1 for each in names) or names[0] == names[1]:
        return None
    return names[0].pop(), names[1].pop()


def _by_case(results: Iterable[CaseResult]) -> dict[SystemCaseKey, tuple[float, float]]:
    """Pass rate and mean score of each case."""
    tries: dict[SystemCaseKey, list[tuple[float, float]]] = defaultdict(list)
    for result in results:
        score = result.score
        outcome = (float(score.passed), score.score) if score else (0.0, 0.0)
        tries[result.system, result.split, result.incident, result.view].append(outcome)
    return {
        case: (sum(passed for passed, _ in each) / len(each), round(sum(s for _, s in each) / len(each), 6))
        for case, each in tries.items()
    }
