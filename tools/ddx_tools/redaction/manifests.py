"""Finds Kubernetes secrets: everything under `data` of a manifest of `kind: Secret`, whatever its name."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddx_tools.redaction.assignments import FIELD, rest_as_value
from ddx_tools.redaction.following_lines import behind_prefix
from ddx_tools.redaction.shapes import Span
from ddx_tools.redaction.values import KIND

_SECRET = re.compile(rb"[\"']?\bkind[\"']?:[ \t]*[\"']?Secret[\"',}\])]*[ \t\r]*$")
_DATA = re.compile(rb"[\"']?(?:data|stringData)[\"']?:[ \t]*\{?[ \t\r]*$")
_INDENT = re.compile(rb"[ \t]*(?:- +)?")
_OPENED = re.compile(rb"[^\n]*[\"'](?=[ \t]*(?:- )?[A-Za-z][^\"'\n]*$)", re.M)
_BARE = re.compile(rb"[^\s\"'}][^\"'\n]*")
_MOST_LINES = 200
"""The number of lines searched above and below the line with the kind."""


def is_secret_of_kubernetes(line: bytes) -> bool:
    """Whether a line declares the kind of a manifest to be a secret."""
    return b"Secret" in line and bool(_SECRET.search(line))


def values_of_the_manifest(block: bytes, start: int, end: int) -> Iterator[Span]:
    """Find the values of the manifest around a line `kind: Secret`; its fields may be in any order."""
    indent = _indent(block, start, end)
    is_data = False
    for first, last in [*_siblings_above(block, start, indent), *_siblings_below(block, end, indent)]:
        place = _text_at(block, first, last)
        if _indent(block, first, last) <= indent:
            is_data = bool(_DATA.match(block, place, last))
        elif is_data:
            line = block[place:last]
            field = FIELD.match(line)
            if value := rest_as_value(line, field.end() if field else 0, _BARE):
                yield Span(place + value.start, place + value.end, KIND)


def _siblings_above(block: bytes, start: int, indent: int) -> list[tuple[int, int]]:
    lines: list[tuple[int, int]] = []
    while start and len(lines) < _MOST_LINES:
        last = start - 1
        start = block.rfind(b"\n", 0, last) + 1
        if _indent(block, start, last) < indent or _ends_a_manifest(block, start, last):
            break
        lines.append((start, last))
        if _begins_a_manifest(block, start, last, indent):
            break
    return lines[::-1]


def _siblings_below(block: bytes, end: int, indent: int) -> list[tuple[int, int]]:
    lines: list[tuple[int, int]] = []
    while end < len(block) and len(lines) < _MOST_LINES:
        first = end + 1
        end = block.find(b"\n", first)
        end = len(block) if end < 0 else end
        if (
            _indent(block, first, end) < indent
            or _ends_a_manifest(block, first, end)
            or _begins_a_manifest(block, first, end, indent)
        ):
            break
        lines.append((first, end))
    return lines


def _begin(block: bytes, first: int, last: int) -> int:
    """The start of a line; for the first line of a text in a string, after the quote."""
    place = behind_prefix(block, first, last)
    opened = _OPENED.match(block, place, last) if not first else None
    return opened.end() if opened else place


def _text_at(block: bytes, first: int, last: int) -> int:
    indent = _INDENT.match(block, _begin(block, first, last), last)
    return indent.end() if indent else first


def _indent(block: bytes, first: int, last: int) -> int:
    return _text_at(block, first, last) - _begin(block, first, last)


def _ends_a_manifest(block: bytes, first: int, last: int) -> bool:
    return block[_begin(block, first, last) : last].strip() in (b"", b"---", b"...")


def _begins_a_manifest(block: bytes, first: int, last: int, indent: int) -> bool:
    """Whether a line is the first of a manifest in a list."""
    place = _text_at(block, first, last)
    return _indent(block, first, last) == indent and block[:place].endswith(b"- ")
