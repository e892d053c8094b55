"""The worth of tools, playbooks and skill: each arm compared with the barest one on the same cases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict

from ddx_evals.incidents import View
from ddx_evals.results.run import CaseKey, CaseResult
from ddx_evals.scoring.aggregate import clustered_standard_error, mean

_BAREST_FIRST = ("none", "shell", "probes", "server", "all")


class Delta(BaseModel):
    """The difference in pass rate between two arms; a failed try counts as not passed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str
    split: str
    view: View
    arm: str
    base: str
    cases: int
    """The number of cases that both arms tried."""
    passed: float
    passed_error: float | None
    """Standard error of the paired difference, clustered by incident."""
    score: float


def deltas(results: Iterable[CaseResult]) -> list[Delta]:
    """Compare every arm of a system with its barest one, if it has several."""
    by_system: dict[tuple[str, str, View], dict[str, dict[CaseKey, list[CaseResult]]]] = {}
    for result in results:
        if result.arm:
            arms = by_system.setdefault((result.system, result.split, result.view), {})
            arms.setdefault(result.arm, defaultdict(list))[result.case].append(result)
    found = []
    for (system, split, view), arms in by_system.items():
        base, *others = sorted(arms, key=_bareness)
        for arm in others:
            common = sorted(case for case in arms[arm] if case in arms[base])
            if common:
                passed = [(case[1], _passed(arms[arm][case]) - _passed(arms[base][case])) for case in common]
                score = [_score(arms[arm][case]) - _score(arms[base][case]) for case in common]
                found.append(
                    Delta(
                        system=system,
                        split=split,
                        view=view,
                        arm=arm,
                        base=base,
                        cases=len(common),
                        passed=mean(difference for _, difference in passed) or 0.0,
                        passed_error=clustered_standard_error(passed),
                        score=mean(score) or 0.0,
                    )
                )
    return found


def in_words(delta: Delta) -> str:
    """Describe a difference in one line."""
    error = "" if delta.passed_error is None else f" ± {100 * delta.passed_error:.0f}"
    return (
        f"{delta.system}, {delta.split}, {delta.view}: {delta.arm} passes {100 * delta.passed:+.0f}{error} points "
        f"compared with {delta.base}, score {delta.score:+.2f} ({delta.cases} cases)"
    )


def _bareness(arm: str) -> tuple[int, bool, str]:
    tools, _, extra = arm.partition("+")
    return (_BAREST_FIRST.index(tools) if tools in _BAREST_FIRST else len(_BAREST_FIRST), bool(extra), arm)


def _passed(tries: Sequence[CaseResult]) -> float:
    return sum(bool(each.score and each.score.passed) for each in tries) / len(tries)


def _score(tries: Sequence[CaseResult]) -> float:
    return sum(each.score.score if each.score else 0.0 for each in tries) / len(tries)
