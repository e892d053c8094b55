"""Rejoins lines that a terminal wrapped, in logs copied from one, where that matters.

A copy of a terminal of 80 columns breaks messages in the middle of a word. Nothing marks the break, and many lines have
equal lengths by chance. So lines are only joined in logs whose longest lines all have the same length, and only if a
known message, a traceback frame or an exception continues across the break.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from ddx_tools.knowledge.known_messages import match_signatures
from ddx_tools.model.files.log_text import CONTROL, TextBlock
from ddx_tools.parsers.logs.launcher_words import launcher_event
from ddx_tools.parsers.logs.log_prefixes import Labels, read_prefix

BREAK = b"\x0b"
"""Marks each break at the end of a joined line, so that lines can be counted; other text never contains it."""

_MOST_BYTES = 1 << 20
_WIDTHS = range(40, 401)
_USUAL_WIDTHS = frozenset({80, 100, 120, 132, 160, 200})
_MOST_PIECES = 24
_FRAME = re.compile(r'File "[^"]{1,1000}", line \d{1,9}(?:, in [\w<>.]{1,300})?')
_EXCEPTION = re.compile(r"(?:^|[\s:])[\w.]{0,200}(?:Error|Exception): ")
_BEGINNING = re.compile(
    r'\s{2,}|[=\-*]{5}|Traceback |File "|During handling|The above exception|`{3}|[\w.]{1,200}(?:Error|Exception)\b'
)
_NO_LABELS = Labels(b"")


def whole_lines(block: TextBlock) -> TextBlock:
    """Return the lines without control characters, rejoined if a terminal wrapped them; only short logs are copied from
    one."""
    data = block.data.translate(None, CONTROL)
    return replace(block, data=rejoined(data) if len(data) <= _MOST_BYTES else data)


def rejoined(data: bytes) -> bytes:
    """Return the text with wrapped lines rejoined."""
    width = _width(data)
    if width is None:
        return data
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    joined: list[str] = []
    at = 0
    while at < len(lines):
        pieces = _broken(lines, at, width)
        count = _belonging(pieces)
        joined.append("".join(pieces[:count]) + BREAK.decode() * (count - 1))
        at += count
    return "\n".join(joined).encode("utf-8", "surrogateescape")


def _broken(lines: list[str], at: int, width: int) -> list[str]:
    """The lines that may be one: all but the last are as long as the terminal is wide, and none begins a new
    message."""
    pieces = [lines[at]]
    while len(pieces[-1]) == width and len(pieces) < _MOST_PIECES and at + len(pieces) < len(lines):
        following = lines[at + len(pieces)]
        if not following.strip() or _BEGINNING.match(following) or read_prefix(following, _NO_LABELS).end:
            break
        pieces.append(following)
    return pieces


def _belonging(pieces: list[str]) -> int:
    """How many of the pieces form one line: as long as a known form continues across the breaks."""
    if len(pieces) == 1:
        return 1
    joined = "".join(pieces)
    # A prefix is never a whole line.
    spans = [(0, read_prefix(joined, _NO_LABELS).end + 1), *(found.span() for found in _FRAME.finditer(joined))]
    for match in match_signatures(joined):
        start = joined.find(match.text)
        spans.append((start, start + len(match.text)))
    if launcher_event(joined) and not any(map(launcher_event, pieces)):
        spans.append((0, len(joined)))
    if found := _EXCEPTION.search(pieces[0]):
        spans.append((found.start(), len(joined)))
    count, end = 1, len(pieces[0])
    while count < len(pieces) and any(start < end < stop for start, stop in spans):
        end += len(pieces[count])
        count += 1
    return count


def _width(data: bytes) -> int | None:
    """The length of the longest lines, if it may be a terminal's width."""
    lengths = Counter(len(line) for line in data.decode("utf-8", "replace").split("\n"))
    width = max(lengths)
    return width if width in _WIDTHS and (lengths[width] > 1 or width in _USUAL_WIDTHS) else None
