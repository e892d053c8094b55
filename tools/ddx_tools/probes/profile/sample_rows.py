"""Turns stack samples into rows of `stack_samples`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ddx_tools.knowledge.frame_classes import Activity, frame_rules
from ddx_tools.parsers.python.pyspy_json import parse_samples
from ddx_tools.probes.profile.samples import WAITS_FOR_DATA

_MOST_STACKS, _MOST_STACK = 50_000, 8_000


def sample_rows(lines: Iterable[bytes], rank: int | None, source: str) -> list[dict[str, Any]]:
    """Return the rows of `stack_samples` for the main thread."""
    rules, rows = frame_rules(), []
    for sample in parse_samples(lines):
        if not sample.is_main:
            continue
        activity = rules.activity(sample.frames, False, None)
        if "dataloader" in rules.contexts(sample.frames, ()):  # even if it calls the program's own code
            activity = Activity(WAITS_FOR_DATA)
        frame = next((frame for frame in sample.frames if frame.is_user), None)
        place = {"file": frame.file, "line": frame.line, "function": frame.function} if frame else {}
        does = {"activity": activity.name, "operation": activity.operation, "samples": sample.count}
        stack = ";".join(f"{frame.function} ({frame.module}:{frame.line})" for frame in reversed(sample.frames))
        whose = {"rank": rank, "source": source, "source_line": sample.line}
        rows.append({**whose, **does, **place, "stack": stack[:_MOST_STACK]})
        if len(rows) == _MOST_STACKS:
            break
    return rows
