"""What a log says about itself: when it begins and ends, and until when each rank speaks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ddx_tools.parsers.logs.log_prefixes import Labels, read_prefix

TAIL_BYTES = 64 << 10
"""How much of a log's end is read for each rank's last words, and of its beginning for its first date."""
_LINE_BYTES = 400
_LIBRARY_LINE = re.compile(r"\[?[IWEF]\d{4} \d\d:\d\d:\d\d\.|ProcessGroup[A-Z]|NCCL (?:INFO|WARN)")
"""Threads of libraries speak on after the program has ended with an exception."""


@dataclass
class LogFacts:
    """Times in seconds since the epoch, on the clock of the log's host; a time without a zone is read as UTC."""

    first_s: float | None = None
    last_s: float | None = None
    spoke_s: dict[int | None, float] = field(default_factory=dict)
    """Per rank, the time of the last dated line of its program, if that is near the end of the log."""

    def take_head(self, head: bytes, labels: Labels) -> None:
        """Read the beginning of the log."""
        self.first_s = next((time_s for _, time_s, _ in _dated(head[:TAIL_BYTES], labels)), None)

    def take_tail(self, tail: bytes, labels: Labels) -> None:
        """Read the end of the log."""
        for rank, time_s, is_library in _dated(tail, labels):
            self.last_s = max(time_s, self.last_s or time_s)
            if not is_library:
                self.spoke_s[rank] = max(time_s, self.spoke_s.get(rank, time_s))


def _dated(data: bytes, labels: Labels) -> Iterator[tuple[int | None, float, bool]]:
    """(rank, time, whether a library wrote it) of each line with a date."""
    for line in data.split(b"\n"):
        if not any(digit in line[:_LINE_BYTES] for digit in (b":0", b":1", b":2", b":3", b":4", b":5")):
            continue
        raw = line[:_LINE_BYTES].decode("utf-8", "replace")
        prefix = read_prefix(raw, labels)
        if prefix.time_s is not None:
            yield prefix.rank, prefix.time_s, bool(_LIBRARY_LINE.search(raw))
