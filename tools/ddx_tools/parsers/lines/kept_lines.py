"""Keeps the few lines of a text that may matter to a person who has not read it, found by counting in the same pass.

A message printed in each step has one template (`ddx_tools.parsers.lines.line_shapes`) with a million lines; a message
printed once has one with a single line. For each template, the first lines and the last one are kept verbatim. The
lines with each word are counted as well, because names that differ in each line make templates rare, but not their
words. Memory is bounded: of too many templates, those with the rarest words and those with the most lines are kept.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Any

from ddx_tools.model.files.log_text import DIGITS_AS_ZERO, TextBlock
from ddx_tools.parsers.lines.line_shapes import template_of
from ddx_tools.parsers.lines.selection import LineSelection
from ddx_tools.redaction.text import redact_lines

_MOST_TEMPLATES = 16_000
_LEFT_RARE, _LEFT_FREQUENT = 6_000, 2_000
_MOST_WORDS, _LEFT_WORDS = 200_000, 60_000
_RAREST_WORDS = 3
_MOST_WANTED = 3_000
"""How many templates of a block have lines kept."""
_MOST_ROWS = 400
_FIRST_KEPT = 8
"""How many first lines of a template are kept, in addition to its last line."""
_WHOLE_LINES = 120
"""A text with at most this many lines is kept whole."""
_ENDS = 4
"""How many lines at the beginning and at the end of each text are kept."""
_LINE_BYTES = 1_000
_MANY_WORDS = 5
"""A word varies if this many different words appear in its place."""
_MOST_MASKED = 20
_KEY_BEGINS = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY")
_KEY_LINE = re.compile(rb"(?:^|[ |:])[A-Za-z0-9+/=]{8,200}\s{0,8}$")
_KEY_LINES = 200

Row = dict[str, Any]
_Line = tuple[int, bytes]
"""(line number, text)"""


@dataclass(slots=True)
class _Template:
    waking: bool = False
    times: int = 0
    first: list[_Line] = field(default_factory=list)
    last: _Line | None = None
    """The last line, after the first ones."""


class KeptLines:
    """Collects the unusual lines of one text: a consumer of its lines (`ddx_tools.parsers.lines.stream`)."""

    look = LineSelection

    def __init__(self) -> None:
        self._templates: dict[str, _Template] = {}
        self._words: Counter[str] = Counter()
        """The number of lines that contain each word."""
        self._count = 0
        self._begins: list[_Line] = []
        self._ends: list[_Line] = []
        self._all: list[_Line] | None = []
        """All lines, as long as there are few."""
        self._key_until = 0
        """The line after which no line belongs to a private key."""

    def take(self, block: TextBlock, seen: LineSelection) -> None:
        """Count the lines of the next block, and keep those of rare kinds."""
        counted = seen.templates
        self._count += sum(counted.times)
        for key, times in zip(counted.keys, counted.times, strict=True):
            for word in set(key.split(" ")):
                self._words[word] += times
        wanted = self._wanted(counted.keys)
        known: dict[int, _Template] = {}
        for number, (key, times) in enumerate(zip(counted.keys, counted.times, strict=True)):
            template = self._templates.get(key)
            if template is None and number in wanted:
                template = self._templates[key] = _Template()
            if template is not None:
                template.times += times
                template.waking |= counted.waking[number]
                known[number] = template
        last: dict[int, int] = {}
        for place, number in counted.places:
            template = known.get(number)
            if template is not None and len(template.first) < _FIRST_KEPT:
                template.first.append(seen.line(place, _LINE_BYTES))
            elif template is not None:
                last[number] = place
        for number, place in last.items():
            known[number].last = seen.line(place, _LINE_BYTES)
        if len(self._templates) > _MOST_TEMPLATES:
            self._forget()
        if len(self._words) > _MOST_WORDS:
            self._words = Counter(dict(self._words.most_common(_LEFT_WORDS)))
        self._take_ends(seen)
        for match in _KEY_BEGINS.finditer(seen.block.data) if b"PRIVATE KEY" in seen.block.data else ():
            line = seen.block.number + seen.block.data.count(b"\n", 0, match.start())
            self._key_until = max(self._key_until, line + _KEY_LINES)

    def _wanted(self, keys: Sequence[str]) -> Collection[int]:
        """The templates of a block whose lines are kept; of too many, those with the rarest words."""
        every = range(len(keys))
        if len(keys) <= _MOST_WANTED:
            return every
        return set(nlargest(_MOST_WANTED, every, key=lambda at: self._surprise(keys[at])))

    def _forget(self) -> None:
        """Drop the least telling templates."""
        rare = sorted(self._templates, key=self._surprise, reverse=True)[:_LEFT_RARE]
        frequent = sorted(self._templates, key=lambda key: -self._templates[key].times)[:_LEFT_FREQUENT]
        self._templates = {key: self._templates[key] for key in dict.fromkeys([*rare, *frequent])}

    def _surprise(self, key: str) -> float:
        """How rare a template's words are: all of them, and the rarest one."""
        each = sorted(math.log((self._count + 2) / (self._words[word] + 1)) for word in key.split(" "))
        rarest = each[-_RAREST_WORDS:]
        return (sum(each) / len(each) + sum(rarest) / len(rarest)) / 2

    def _take_ends(self, seen: LineSelection) -> None:
        size = len(seen)
        if self._all is not None and len(self._all) + size <= _WHOLE_LINES:
            self._all += [seen.line(place, _LINE_BYTES) for place in range(size)]
        else:
            self._all = None
        if not self._begins:
            self._begins = [seen.line(place, _LINE_BYTES) for place in range(min(size, _ENDS))]
        last = [seen.line(place, _LINE_BYTES) for place in range(max(0, size - _ENDS), size)]
        self._ends = [*self._ends, *last][-_ENDS:]

    def rows(self, path: str, source: str) -> list[Row]:
        """Return the rows of `kept_lines`: all lines of a short text, else those of rare kinds."""
        alike = _alike({key: template.times for key, template in self._templates.items()})
        rarity = self._rarities(alike)
        rows: dict[int, Row] = {}
        for key in sorted(self._templates, key=lambda key: -rarity[key]):
            template = self._templates[key]
            for number, text in [*template.first, *([template.last] if template.last else [])]:
                if len(rows) < _MOST_ROWS and text.strip():
                    rows[number] = _row(text, key, template, alike[key], rarity[key])
        for number, text in self._all if self._all is not None else [*self._begins, *self._ends]:
            if number not in rows and text.strip():
                key = template_of(text.translate(DIGITS_AS_ZERO))
                rows[number] = _row(
                    text, key, self._templates.get(key, _Template()), alike.get(key, 1), rarity.get(key, 1)
                )
        lines = sorted(rows.items())
        texts = redact_lines([row["text"] for _, row in lines])
        whole = {"path": path, "source": source, "lines": self._count}
        return [
            row | whole | {"line": number, "text": text.decode("utf-8", "replace")}
            for (number, row), text in zip(lines, texts, strict=True)
            if not (number <= self._key_until and _KEY_LINE.search(text))
        ]

    def _rarities(self, alike: Mapping[str, int]) -> dict[str, float]:
        """The rarity of each template and its words, between 0 (every line is like it) and 1."""
        whole = math.log(self._count + 2)
        return {
            key: max(0.0, (math.log((self._count + 2) / (alike[key] + 1)) + self._surprise(key)) / (2 * whole))
            for key in self._templates
        }


def _row(text: bytes, key: str, template: _Template, alike: int, rarity: float) -> Row:
    return {
        "text": text,
        "template": key,
        "times": max(1, template.times),
        "alike": max(1, template.times, alike),
        "rarity": round(rarity, 4),
        "known": template.waking,
    }


def _alike(times: Mapping[str, int]) -> dict[str, int]:
    """For each template, the number of lines that match it or differ only in one or two varying words."""
    totals: dict[tuple[str, ...], list[int]] = {}
    for key, count in times.items():
        for mask in _masked(key):
            total = totals.setdefault(mask, [0, 0])
            total[0] += count
            total[1] += 1
    return {
        key: max(
            [count, *(total for total, different in map(totals.__getitem__, _masked(key)) if different >= _MANY_WORDS)]
        )
        for key, count in times.items()
    }


def _masked(key: str) -> Iterator[tuple[str, ...]]:
    """Yield the template's words without one of them, or without two adjacent ones."""
    words = key.split(" ")
    count = len(words)
    if 2 <= count <= _MOST_MASKED:
        for at in range(count):
            yield (*words[:at], "", *words[at + 1 :])
            if count >= 4 and at + 1 < count:
                yield (*words[:at], "", "", *words[at + 2 :])
