"""What the tries of a system lack, a line for each: enough to go and look, and nothing that tells the truth."""

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
    "hint: an agent runs in a directory of its own, /job under seal, and sees there of your files only what --see "
    "names, at its absolute path: --see ~/my-agent -- python3 ~/my-agent/agent.py"
)


def failures(results: Iterable[CaseResult]) -> list[str]:
    """A line for each failed try, and what may be the matter where a program was not found."""
    lines = [f"failed: {_asked(each)}: {each.error}" for each in results if each.error]
    return [*lines, _WHERE_IT_RUNS] if any(map(_NOT_THERE.search, lines)) else lines


def shortfalls(results: Iterable[CaseResult]) -> list[str]:
    """A line for each answer that does not pass, at most twenty of a system."""
    found: dict[str, list[str]] = defaultdict(list)
    for each in results:
        if each.score and not each.score.passed:
            found[each.system].append(f"not passed: {_asked(each)}: {', '.join(_lacks(each.score, each.named))}")
    return [line for lines in found.values() for line in _bounded(lines)]


def _bounded(lines: Sequence[str]) -> list[str]:
    left_out = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], *([f"… and {left_out} more: --json, or what --out keeps"] if left_out > 0 else [])]


def _asked(result: CaseResult) -> str:
    name = f"{result.system} [{result.arm}]" if result.arm else result.system
    return f"{name} on {result.split}/{result.incident} {result.view}{f', try {result.epoch}' * (result.epoch > 1)}"


def _lacks(score: CaseScore, named: Sequence[str]) -> Iterator[str]:
    """What keeps an answer from passing. Why advice is harmful may name the cause, so that is not said."""
    if not score.verdict_right:
        yield f"verdict {score.verdict} wrong"
    if score.confidently_wrong:
        yield f"cause wrong (named {safe(named[0].split()[0]).plain})" if named else "no cause named"
    if score.verdict_right:
        yield from _lacks_of_right_verdict(score)
    if score.invented:
        yield f"invented quote {safe(repr(score.invented[0]), limit=_LONGEST_QUOTE).plain}"
    if score.harmful:
        yield "advice that does harm"


def _lacks_of_right_verdict(score: CaseScore) -> Iterator[str]:
    if score.verdict is Verdict.DIAGNOSED:
        if score.localisation not in (None, 1):
            yield "place wrong"
        if not score.grounded and not score.invented:
            yield "no key fact quoted" if score.quotes else "nothing quoted"
    elif score.verdict is Verdict.HEALTHY:
        if not score.invented and not score.harmful:
            yield "somebody blamed where all is well"
    elif not score.asked_well:
        yield "the next check is not the one that settles it"
