"""Secrets in command lines printed as lists: `['sshpass', '-p', '…']`, or one argument per line, as kubectl does.

A list is read as the command line that it stands for; each byte keeps its position.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddx_tools.redaction.assignments import of_options
from ddx_tools.redaction.following_lines import behind_prefix
from ddx_tools.redaction.patterns import compiled
from ddx_tools.redaction.readable_text import ReadableText, rewritten
from ddx_tools.redaction.shapes import Span, of_known_shapes, program_names
from ddx_tools.redaction.values import is_name

_MOST_LINES = 60
_LONGEST = 2_000

_BETWEEN_STRINGS = re.compile(rb"(?<=[^\s,])[\"'],\s{0,80}[bru]?[\"'](?=[^\s,\]])")
_QUOTED_LIST = compiled(r"[^\s,][\"'],\s*[bru]?[\"'][^\s,\]]")
_BARE_LIST = compiled(r"[\[(][^\[\]()\"'\n]*, (?:-|login|pass:)")
_BETWEEN_WORDS = re.compile(rb",[ \t]|[\[\]()]")
_ELEMENT = re.compile(
    rb"[ \t]*(?:-[ \t]+)?"
    rb"(?:\"(?P<double>(?:[^\"\\\n]|\\.)*)\"|'(?P<single>[^'\n]*)'|(?P<bare>[^\s\"'#]\S*?))"
    rb",?[ \t\r]*(?:\\[ \t\r]*)?$"
)


def list_hint() -> str:
    """An expression that matches in every argument list that may have a secret, on one line or several."""
    programs = "|".join(program_names())
    return (
        r"[\"'],[ \t]?\\{0,3}[\"'](?:--?[A-Za-z]|login\\{0,3}[\"']|pass:)"
        r"|[^\s,\"'], --?[A-Za-z][\w-]{0,60},? "
        rf"|(?:\b|\\[nrt])(?:{programs})[\\\"']{{0,4}},?[ \t]{{0,4}}\r?(?:\n|\\n)"
        r"|\n[ \t]*(?:- +)?[\"']?--?[A-Za-z][\w-]{0,60}[\"']?,?[ \t]{0,4}\r?\n"
    )


def of_lists(line: bytes) -> Iterator[Span]:
    """Find the secrets in a line's argument lists."""
    if _QUOTED_LIST.search(line):
        yield from _in_reading(line, _BETWEEN_STRINGS)
    if _BARE_LIST.search(line):
        yield from _in_reading(line, _BETWEEN_WORDS)


def _in_reading(line: bytes, between: re.Pattern[bytes]) -> Iterator[Span]:
    reading = rewritten(ReadableText(line), between, lambda _: b" ")
    for span in of_known_shapes(reading.text):
        start, end = reading.place(span.start, span.end)
        if not line.startswith(b"<redacted", start):
            yield Span(start, end, span.kind)


def of_argument_lines(block: bytes, start: int, end: int, done: int) -> tuple[list[Span], int]:
    """Find secrets in consecutive lines that each hold one command-line argument.

    `start` and `end` delimit one such line in `block`; the lines around it are searched with it. Returns the secrets
    and the position where these lines end. Lines before `done`, the end returned by an earlier call, are not searched
    again.
    """
    if start < done or not _element(block, start, end):
        return [], done
    first = _beginning(block, start, done)
    words, places, last = _run(block, first)
    if len(words) < 2:
        return [], last
    joined = b" ".join(words)
    found = []
    for span in [*of_known_shapes(joined), *of_options(joined, 0, len(joined))]:
        for at, place, size in places:
            low, high = max(span.start, at), min(span.end, at + size)
            value = joined[low:high]
            is_text = not value.startswith((b"<redacted", b"-")) and not value.endswith(b"(")
            if low < high and is_text and not is_name(value):
                found.append(Span(place + low - at, place + high - at, span.kind))
    return found, last


def _element(block: bytes, first: int, last: int) -> tuple[int, int] | None:
    """The start and end of the argument that fills a line; None if there is none."""
    if last - first > _LONGEST:
        return None
    match = _ELEMENT.match(block[behind_prefix(block, first, last) : last])
    if match is None or match.lastgroup is None:
        return None
    begin, end = match.span(match.lastgroup)
    shift = last - match.endpos
    return shift + begin, shift + end


def _beginning(block: bytes, start: int, done: int) -> int:
    for _ in range(_MOST_LINES):
        above = block.rfind(b"\n", 0, max(0, start - 1)) + 1
        if not start or above < done or not _element(block, above, start - 1):
            break
        start = above
    return start


def _run(block: bytes, first: int) -> tuple[list[bytes], list[tuple[int, int, int]], int]:
    """The arguments from a line on, the position of each in the joined line and in the block, and their end."""
    words: list[bytes] = []
    places: list[tuple[int, int, int]] = []
    at = 0
    for _ in range(2 * _MOST_LINES):
        last = block.find(b"\n", first)
        last = len(block) if last < 0 else last
        element = _element(block, first, last)
        if element is None:
            break
        word = block[element[0] : element[1]]
        words.append(word)
        places.append((at, element[0], len(word)))
        at += len(word) + 1
        first = last + 1
        if first >= len(block):
            break
    return words, places, first
