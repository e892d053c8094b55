"""A log's own ordinary lines, as if it had begun much earlier, to lengthen logs with."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta

_STAMP = re.compile(
    rb"(?P<day>\d{4}[-/]\d\d[-/]\d\d|(?<!\d)\d\d[-/]\d\d)?(?P<between>[ T_])?"
    rb"(?P<time>\d\d:\d\d:\d\d)(?P<part>[.,]\d{1,9})?"
)
_COUNT = re.compile(rb"(?<![\w.:/\-\[#x@])\d{1,12}(?![\w.:\-\]])")
_MEASURED = re.compile(rb"(?<![\w.:\-])\d{1,9}\.\d{1,6}(?![\w.:])")
_OF_RANK = re.compile(rb"(?i)(?:rank|pid|node|gpu|local|world|seq|size|cuda|device|group|port|mesh|tp|pp|dp)\W{0,3}\Z")
_UNUSUAL = re.compile(
    rb"(?i)error|exception|traceback|fail|abort|fatal|killed|signal|timeout|timed out|refused|denied|cannot|warn|exit"
    rb"|unable|invalid|mismatch|not found|no such|lost|nan\b|inf\b|watchdog|rank \d+ is |^[\s#+$>]"
)
_LEAST_BYTES = 24
_PLAIN = b"2026-03-01 08:00:00 - trainer - INFO - iteration 4000 elapsed 1.25"
"""The line to repeat for a log without ordinary lines."""


def ordinary_lines(lines: Sequence[bytes], without: Collection[bytes]) -> list[bytes]:
    """The lines that a log could have printed often: with a time or recurring words, and nothing unusual.

    `without`: texts whose lines do not count as ordinary.
    """
    words = {_words(line) for line in without}
    times = Counter(map(_words, lines))
    found = [
        line.rstrip(b"\r\n")
        for line in lines
        if len(line) >= _LEAST_BYTES
        and (_STAMP.search(line) or (times[_words(line)] > 1 and (_COUNT.search(line) or _MEASURED.search(line))))
        and not _UNUSUAL.search(line)
        and not any(part and part in _words(line) for part in words)
    ]
    return found or [_PLAIN]


def _words(line: bytes) -> bytes:
    return re.sub(rb"[\W\d_]+", b" ", line).strip()


class OwnLines:
    """A log's ordinary lines with earlier times, lower counts and other measurements, reproducible by seed."""

    def __init__(self, lines: Sequence[bytes], seed: int) -> None:
        self._lines = lines
        self._random = random.Random(seed)

    def before(self, line: bytes, most_bytes: int) -> Iterator[bytes]:
        """Yield lines that could precede a line, oldest first, in at most `most_bytes`."""
        number = max(1, most_bytes // (len(line) + 1))
        for at in range(number):
            yield self._earlier(line, at, number) + b"\n"

    def _earlier(self, line: bytes, at: int, number: int) -> bytes:
        seconds = (number - at) * 0.7

        def counted(match: re.Match[bytes]) -> bytes:
            if _OF_RANK.search(line[: match.start()]):
                return match[0]
            return str(int(match[0]) * at // number).encode()

        def measured(match: re.Match[bytes]) -> bytes:
            digits = len(match[0].partition(b".")[2])
            return f"{float(match[0]) * self._random.uniform(0.9, 1.1):.{digits}f}".encode()

        return _STAMP.sub(lambda m: _shifted(m, seconds), _MEASURED.sub(measured, _COUNT.sub(counted, line)))


def _shifted(match: re.Match[bytes], seconds: float) -> bytes:
    """A timestamp shifted earlier, in its own format."""
    day = match["day"] or b"2026-03-02"
    whole = day if len(day) == 10 else b"2026-" + day
    try:
        then = datetime.strptime(
            whole.replace(b"/", b"-").decode() + " " + match["time"].decode(), "%Y-%m-%d %H:%M:%S"
        ) - timedelta(seconds=seconds)
    except ValueError:
        return match[0]
    slash = b"/" in day
    days = then.strftime("%Y/%m/%d" if slash else "%Y-%m-%d").encode()
    told = b"" if match["day"] is None else days if len(day) == 10 else days[5:]
    part = match["part"] or b""
    return told + (match["between"] or b"") + then.strftime("%H:%M:%S").encode() + part
