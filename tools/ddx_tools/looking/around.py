"""The lines of the program around a place, with the condition that leads there."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddx_tools.model import Location, SourceLines
from ddx_tools.store import Store

_GUARD = re.compile(r"\s*(?:if|elif|else|while|for|async for|with|async with|try|except|finally|case|match)\b")
_FUNCTION = re.compile(r"\s*(?:async\s+)?(?:def|class)\b")
_MOST_ABOVE = 200
_LONGEST = 160


def around(store: Store, place: Location) -> SourceLines | None:
    """Three lines of the program, the place in the middle, and its guard; None where its text is not at hand."""
    if place.line is None:
        return None
    rows = store.query("SELECT text FROM sources WHERE file = ? LIMIT 1", [place.file])
    if not rows:
        return None
    lines = rows[0]["text"].split("\n")
    if not 1 <= place.line <= len(lines):
        return None
    guard = guard_of(lines, place.line)
    shown = sorted({place.line - 1, place.line, place.line + 1, guard or place.line})
    told = [f"{number}: {lines[number - 1].rstrip()[:_LONGEST]}" for number in shown if 1 <= number <= len(lines)]
    return SourceLines(file=place.file, line=place.line, guard=guard, lines=told)


def guard_of(lines: Sequence[str], line: int) -> int | None:
    """The line (1-based) of the innermost condition, loop or block around a line of its function; None without one."""
    indent = _indent(lines[line - 1])
    for number in range(line - 1, max(0, line - 1 - _MOST_ABOVE), -1):
        text = lines[number - 1]
        if not text.strip() or text.lstrip().startswith(("#", ")", "]", "}")) or _indent(text) >= indent:
            continue
        if _FUNCTION.match(text):
            return None
        if _GUARD.match(text):
            return number
        indent = _indent(text)
    return None


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())
