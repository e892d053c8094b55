"""What the tries of a system lack, one line each: enough to investigate, without revealing the truth."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from ddx_evals.results.run import CaseResult
from ddx_evals.scoring import CaseScore
from ddx_server.render.safe_text import safe
from ddx_tools.model.diagnosis import Verdict

_MOST_LINES = 20
_LONGEST_QUOTE = 60
_NOT_THERE = re.compile(r"exit 12[67]\b|No such file")
_WHERE_IT_RUNS = (
    "hint: an agent runs in its own directory, /job when sealed, and sees only those of your files that --see names, "
    "at their absolute paths: --see ~/my-agent -- python3 ~/my-agent/agent.py"
)


def failures(results: Iterable[CaseResult]) -> list[str]:
    """One line per failed try, with a hint if a program was not found."""
    lines = [f"failed: {_asked(each)}: {each.error}" for each in results if each.error]
    return [*lines, _WHERE_IT_RUNS] if any(map(_NOT_THERE.search, lines)) else lines


def shortfalls(results: Iterable[CaseResult]) -> list[str]:
    """One line per failing answer, at most twenty per system."""
    found: dict[str, list[str]] = defaultdict(list)
    for each in results:
        if each.score and not each.score.passed:
            found[each.system].append(f"not passed: {_asked(each)}: {', '.join(_lacks(each.score, each.named))}")
    return [line for lines in found.values() for line in _bounded(lines)]


def _bounded(lines: Sequence[str]) -> list[str]:
    left_out = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], *([f"… and {left_out} more: --json, or the file of --out"] if left_out > 0 else [])]


def _asked(result: CaseResult) -> str:
    name = f"{result.system} [{result.arm}]" if result.arm else result.system
    return f"{name} on {result.split}/{result.incident} {result.view}{f', try {result.epoch}' * (result.epoch > 1)}"


def _lacks(score: CaseScore, named: Sequence[str]) -> Iterator[str]:
    """Yield what keeps an answer from passing. Why advice is harmful is omitted, since that may name the cause."""
    if not score.verdict_right:
        yield f"verdict {score.verdict} wrong"
    if score.confidently_wrong:
        yield f"cause wrong (named {safe(named[0].split()[0]).plain})" if named else "no cause named"
    if score.verdict_right:
        yield from _lacks_of_right_verdict(score)
    if score.invented:
        yield f"invented quote {safe(repr(score.invented[0]), limit=_LONGEST_QUOTE).plain}"
    if score.harmful:
        yield "harmful advice"


def _lacks_of_right_verdict(score: CaseScore) -> Iterator[str]:
    if score.verdict is Verdict.DIAGNOSED:
        if score.localisation not in (None, 1):
            yield "place wrong"
        if not score.grounded and not score.invented:
            yield "no key fact quoted" if score.quotes else "nothing quoted"
    elif score.verdict is Verdict.HEALTHY:
        if not score.invented and not score.harmful:
            yield "a rank blamed in a healthy job"
    elif not score.asked_well:
        yield "the next check is not the one that settles it"
