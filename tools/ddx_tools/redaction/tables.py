"""Finds the values in a column of a table that is headed by the name of a secret.

user,password        | user | token |        NAME     TOKEN        user | password
bob,…                |------|-------|        bob      …           ------+----------
                     | bob  | …     |                              bob  | …
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ddx_tools.redaction.following_lines import behind_prefix
from ddx_tools.redaction.names import Meaning, meaning_of
from ddx_tools.redaction.shapes import Span
from ddx_tools.redaction.values import KIND, is_name, is_path, is_value, looks_secret, mixes

TABLE_HINT = (
    r"(?:pass(?:w(?:or)?d|phrase)|secret|token|(?:api|access)[_ ]?key)[\\\"'`]{0,4}[ \t]{0,40}"
    r"(?:[,;|\t]|\\{1,4}[nrt]|\r?\n)"
)
"""Matches in the header of a table that may have a column of secrets, in small letters."""

_LONGEST_HEADER = 600
_NAMES_A_SECRET = re.compile(rb"(?i)pass|secret|token|key|cred|pw")
_SEPARATORS = tuple(map(re.compile, (rb"\t", rb"\|", rb",", rb";", rb" {2,}")))
_OF_PROGRAM = re.compile(rb"[ \t]|[^\n]*[,;][ \t]")
"""Matches names in a program or a sentence, which have commas between them, too."""
_TITLE = re.compile(rb"[\"'`*]{0,3}([A-Za-z_][\w.-]{0,40}(?: [A-Za-z][\w.-]{0,40})?)[\"'`*]{0,3}")
_RULE = re.compile(rb"[ \t|+:=-]*-{2}[ \t|+:=-]*")
_AROUND = b" \t\r\"'`*"
_HOLDERS = frozenset({"secret", "secrets", "credential", "credentials", "cookie", "authorization"})
"""Titles under which the names of secrets may stand as well."""
_LONG_TOKEN = 16
_IN_JSON = re.compile(rb"[^\n]{0,400}[\"']: ?[\"']")
"""Matches what stands before the first line of a text in a string."""


class _Header(NamedTuple):
    separator: re.Pattern[bytes]
    cells: int
    columns: dict[int, bool]
    """Columns of secrets, and whether any value there is one."""


def is_header(line: bytes) -> bool:
    """Whether a line may be the header of a table with a column of secrets."""
    return _header_at(line, 0, len(line)) is not None


def values_of_table(block: bytes, line: bytes, start: int, end: int) -> Iterator[Span]:
    """Find the secrets in the rows below a header, up to a line with other columns or the next header."""
    found = _header_at(block, start, end) if _NAMES_A_SECRET.search(line) else None
    if found is None:
        return
    header, has_prefix = found
    while end < len(block):
        first = end + 1
        end = block.find(b"\n", first)
        end = len(block) if end < 0 else end
        first = behind_prefix(block, first, end) if has_prefix else first
        row = block[first:end]
        if _RULE.fullmatch(row.rstrip(b"\r")):
            continue
        cells = _cells(row, header.separator)
        if len(cells) != header.cells:
            return
        for column, is_any in header.columns.items():
            low, high = cells[column]
            if is_name(row[low:high]):
                return
            if _is_secret(row[low:high], is_any=is_any):
                yield Span(first + low, first + high, KIND)


def _header_at(block: bytes, start: int, end: int) -> tuple[_Header, bool] | None:
    """The header that a line is, and whether its rows may have a prefix, too."""
    if end - start > _LONGEST_HEADER:
        return None
    if header := _header(block[behind_prefix(block, start, end) : end]):
        return header, True
    opened = None if start else _IN_JSON.match(block, start, end)
    header = _header(block[start:end]) or (_header(block[opened.end() : end]) if opened else None)
    return (header, False) if header else None


def _header(line: bytes) -> _Header | None:
    """The header that a line is, by the first separator whose cells all are titles."""
    if not _NAMES_A_SECRET.search(line):
        return None
    for separator in _SEPARATORS:
        if separator.pattern in (rb",", rb";") and _OF_PROGRAM.match(line):
            continue
        cells = [line[low:high] for low, high in _cells(line, separator)]
        titles = [_TITLE.fullmatch(cell) for cell in cells if cell or separator.pattern != rb"\|"]
        if len(titles) < 2 or not all(titles):
            continue
        columns = {}
        for number, cell in enumerate(cells):
            name = cell.decode("latin-1")
            meaning = meaning_of(name)
            if meaning is Meaning.CERTAINLY or name.lower() == "token":
                columns[number] = meaning is Meaning.CERTAINLY and name.lower() not in _HOLDERS
        return _Header(separator, len(cells), columns) if columns else None
    return None


def _cells(line: bytes, separator: re.Pattern[bytes]) -> list[tuple[int, int]]:
    """The starts and ends of a row's cells, without blanks and quotes."""
    cells, at = [], 0
    for match in [*separator.finditer(line.rstrip()), None]:
        end = match.start() if match else len(line.rstrip())
        cell = line[at:end]
        low = at + len(cell) - len(cell.lstrip(_AROUND))
        cells.append((low, max(low, at + len(cell.rstrip(_AROUND)))))
        at = match.end() if match else end
    return cells


def _is_secret(value: bytes, *, is_any: bool) -> bool:
    if not is_value(value) or is_path(value) or not any(map(str.isalnum, value.decode("latin-1"))):
        return False
    digits = sum(48 <= c < 58 for c in value)
    is_random = mixes(value) or (len(value) >= _LONG_TOKEN and digits > 2 and looks_secret(value))
    return is_random or (is_any and (b" " not in value or looks_secret(value)))
