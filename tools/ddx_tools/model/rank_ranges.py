"""Parses ranks as users type them or ddx prints them: `0-7, 9`, `0-448 step 64`, `0-511 except 157`."""

from __future__ import annotations

import re

from ddx_tools.model.errors import UsageError

_SPAN = re.compile(r"(?P<first>[0-9]{1,7})(?:\s*-\s*(?P<last>[0-9]{1,7})(?:\s*step\s*(?P<step>[0-9]{1,7}))?)?")
_MOST_CHARS = 100_000
_MOST_RANKS = 1 << 20
HELP = "Write ranks as 0-7,9 or 0-448 step 64."


def parse_ranks(text: str) -> list[int]:
    """Parse ranks into an ascending list without repetitions. Raises `UsageError` for text that names none."""
    named, _, excepted = text[:_MOST_CHARS].strip().strip("[]{}()").partition("except")
    ranks = _spans(named, text) - (_spans(excepted, text) if excepted else set())
    if not ranks:
        raise UsageError(f"{text[:60]!r} names no rank", HELP)
    return sorted(ranks)


def _spans(named: str, text: str) -> set[int]:
    ranks: set[int] = set()
    for part in filter(None, (part.strip() for part in named.split(","))):
        span = _SPAN.fullmatch(part)
        if span is None:
            raise UsageError(f"{part[:60]!r} is neither a rank nor a range of ranks", HELP)
        first, last, step = int(span["first"]), int(span["last"] or span["first"]), int(span["step"] or 1)
        if step < 1 or last < first:
            raise UsageError(f"{part[:60]!r} in {text[:60]!r} is not a range of ranks", HELP)
        found = range(first, last + 1, step)
        if len(found) + len(ranks) > _MOST_RANKS:
            raise UsageError(f"{part[:60]!r} covers more ranks than any job has", HELP)
        ranks.update(found)
    return ranks
