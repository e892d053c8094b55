"""Shifts each time of day in texts a few hours later, within the same day."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

_TIME = re.compile(rb"(?<![\d:.])(?<!\d-)([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?![:\d])")
_DURATION = re.compile(
    rb"(?i)(?:eta|elapsed|took|duration|remaining|timeout|in|after|for|up|runtime|time limit"
    rb"|--time|-t)[ =:]{0,3}$|<$|\[$|-$"
)


def with_later_clocks(texts: Mapping[str, bytes], rng: random.Random) -> dict[str, bytes] | None:
    """Shift the texts' clocks a few hours; None if there is no time of day, or no room before midnight."""
    hours = [int(m[1]) for data in texts.values() for m in _TIME.finditer(data) if _is_clock(data, m)]
    if not hours or max(hours) == 23:
        return None
    shift = rng.randrange(1, 24 - max(hours))

    def later(data: bytes) -> bytes:
        return _TIME.sub(lambda m: b"%02d%b" % (int(m[1]) + shift, m[0][2:]) if _is_clock(data, m) else m[0], data)

    return {path: later(data) for path, data in texts.items()}


def _is_clock(data: bytes, match: re.Match[bytes]) -> bool:
    """Whether a match is a time of day rather than a duration such as in `[00:12<01:10`, by the text before it."""
    before = data[max(0, match.start() - 16) : match.start()].rpartition(b"\n")[2]
    return not _DURATION.search(before) and data[match.end() : match.end() + 1] != b"<"
