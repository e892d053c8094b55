"""What ranks printed between the first and the last look: further steps, or further counts of work of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddx_tools.parsers.logs.progress import parse_progress
from ddx_tools.parsers.logs.step_lines import counted_work, step_facts
from ddx_tools.probe import Raw
from ddx_tools.stacks.items import OUTPUT


@dataclass(frozen=True)
class _End:
    """The end of an output file at one moment."""

    step: int | None = None
    """The last training step."""
    counted: str | None = None
    """The last line that counts work, without its numbers."""
    done: int | None = None
    total: int | None = None
    repeated: bool = False
    """The same work was counted before, and training steps came after it."""


def output_rows(raw: Raw) -> list[dict[str, Any]]:
    """Rows of `outputs`: for each file whether it printed further steps, and what it counted.

    That it grew is not enough: a monitor or a heartbeat goes on printing while the job hangs.
    """
    ends: dict[str, list[_End]] = {}
    rank: dict[str, int | None] = {}
    for item in raw.of(OUTPUT):
        path, ranks = item.facts["path"], item.facts["ranks"]
        ends.setdefault(path, []).append(_read_end(item.data))
        rank[path] = ranks[0] if len(ranks) == 1 else None
    return [
        {"host": raw.host, "path": path, "rank": rank[path], "stepped": _rises(seen), **_work(seen)}
        for path, seen in ends.items()
    ]


def _read_end(end: bytes) -> _End:
    step: int | None = None
    counted: tuple[str, int, int] | None = None
    before: set[str] = set()
    for line in re.split(r"[\r\n]+", end.decode("utf-8", "replace")):
        facts = step_facts(line)
        if facts and (count := counted_work(facts)):
            counted = facts.shape, *count
        elif progress := parse_progress(line):
            step = progress.step
            if counted:
                before.add(counted[0])
    if counted is None:
        return _End(step)
    shape, done, total = counted
    return _End(step, shape, done, total, shape in before)


def _rises(ends: Sequence[_End]) -> bool | None:
    """Whether the number of the last step rose; None if the output names no steps."""
    first, last = ends[0].step, ends[-1].step
    return None if first is None or last is None else last > first


def _work(ends: Sequence[_End]) -> dict[str, Any]:
    """The work that was counted on between the looks."""
    first, last = ends[0], ends[-1]
    if first.done is None or last.done is None or (first.counted, first.total) != (last.counted, last.total):
        return {}
    told = {name: getattr(last, name) for name in ("counted", "done", "total", "repeated")}
    return {**told, "done_before": first.done}
