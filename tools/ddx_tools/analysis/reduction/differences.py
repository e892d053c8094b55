"""Finds differences between counterpart lines: of ranks, hosts, a good run and a bad one, or within one text.

Two lines are counterparts if their words are equal. If most have the same value, lines with another value are odd; if
there are two with different values, both are reported.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from ddx_tools.analysis.reduction.kept_text import KeptLine, KeptText

_VALUE = re.compile(r"[\w.:/+-]*\d[\w.:/+-]*")
_WORD = re.compile(r"[^\W\d]\w{1,30}")
_MOST_ALIKE = 64


def odd_lines(texts: Sequence[KeptText]) -> dict[tuple[str, int], str]:
    """Lines whose values differ from their counterparts', by (path, line number), with the difference in words."""
    by_template: dict[str, list[tuple[KeptText, KeptLine]]] = defaultdict(list)
    for text in texts:
        if not text.is_note:
            for line in text.lines:
                by_template[line.template].append((text, line))
    found: dict[tuple[str, int], str] = {}
    for lines in by_template.values():
        if 2 <= len(lines) <= _MOST_ALIKE and all(line.alike <= _MOST_ALIKE for _, line in lines):
            found |= _odd_of(lines)
    return found


def _odd_of(lines: list[tuple[KeptText, KeptLine]]) -> dict[tuple[str, int], str]:
    values = [_VALUE.findall(line.text) for _, line in lines]
    width = Counter(map(len, values)).most_common(1)[0][0]
    rows = [(text, line, row) for (text, line), row in zip(lines, values, strict=True) if len(row) == width]
    found: dict[tuple[str, int], str] = {}
    for at in range(width):
        column = Counter(row[at] for _, _, row in rows)
        if len(column) < 2 or len(column) > max(2, len(rows) // 2):
            continue  # all equal, or different on every line, such as a time or a rank
        common, times = column.most_common(1)[0]
        if len(column) > 2 and times * 2 < len(rows):
            continue  # no value is common, as with process ids that occur in two samples
        for text, line, row in rows:
            if row[at] != common or (len(column) == 2 and times * 2 <= len(rows) + 1):
                other = common if row[at] != common else next(v for v in column if v != common)
                found[text.path, line.number] = f"{_name_of(line.text, at)}{row[at]}; elsewhere {other}"
    return found


def _name_of(text: str, at: int) -> str:
    """The word before a line's value number `at`, which often names the value; empty if there is none."""
    spans = [(0, 0), *(found.span() for found in _VALUE.finditer(text))]
    words = _WORD.findall(text[spans[at][1] : spans[at + 1][0]])
    return f"{words[-1]} " if words else ""
