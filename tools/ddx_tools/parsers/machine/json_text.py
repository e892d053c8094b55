"""Finds JSON objects in a text that may begin with a prompt, hold several answers, or be cut off; with their lines.

`raw_decode` reads one object at a time, so of a file that ends early all whole objects are kept.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ddx_tools.parsers.machine.host_text import TextLine

_DECODER = json.JSONDecoder()
_MOST_ARRAYS = 64
_MOST_OBJECTS = 50_000
_GAP = re.compile(r"[\s,]{0,4096}")
_WORD_CHARS = 60
"""How much of a value is searched for: whoever wrote the file may have escaped the rest differently."""
_QUOTE_CHARS = 300


@dataclass(frozen=True, slots=True)
class JsonPart:
    """A JSON object, and where its text begins and ends."""

    value: dict[str, Any]
    start: int
    end: int


class JsonText:
    """A text with JSON in it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def objects(self, beginning: re.Pattern[str]) -> Iterator[JsonPart]:
        """Yield the JSON objects that follow each match of `beginning`, usually the start of an array.

        After each match, reading ends at the first value that is cut off or is no object.
        """
        at = objects = 0
        for _ in range(_MOST_ARRAYS):
            if not (found := beginning.search(self.text, at)):
                return
            at = found.end()
            while objects < _MOST_OBJECTS and (part := self._object(at)):
                yield part
                at, objects = part.end, objects + 1
            at = max(at, found.end() + 1)

    def _object(self, at: int) -> JsonPart | None:
        gap = _GAP.match(self.text, at)
        start = gap.end() if gap else at
        try:
            value, end = _DECODER.raw_decode(self.text, start)
        except (ValueError, RecursionError):
            return None
        return JsonPart(value, start, end) if isinstance(value, dict) else None

    def line(self, part: JsonPart, value: object = None) -> TextLine:
        """Return the line of the text in which a JSON object contains a string value, with its number.

        Without a string, or if it is not found, this is the object's first line. A long line is cut to begin at the
        key.
        """
        at = part.start
        if isinstance(value, str):
            word = json.dumps(value[:_WORD_CHARS], ensure_ascii=False)
            word = word if len(value) <= _WORD_CHARS else word[:-1]
            at = max(self.text.find(word, part.start, part.end), part.start)
        number = bisect_right(self._breaks, at)
        begin = self._breaks[number - 1]
        end = self._breaks[number] - 1 if number < len(self._breaks) else len(self.text)
        if end - begin > _QUOTE_CHARS:
            key = max(self.text.rfind(mark, max(0, at - _WORD_CHARS), at) for mark in ",{")
            begin = max(begin, key + 1 if key >= 0 else at)
        return TextLine(number, self.text[begin : min(end, begin + _QUOTE_CHARS)].strip())

    @cached_property
    def _breaks(self) -> list[int]:
        """The offset at which each line begins."""
        return [0, *(found.end() for found in re.finditer("\n", self.text))]
