"""Replaces google-re2, as far as `ddx_tools` uses it, on a host that has only Python's standard library.

`re` takes a hundred times as long for an expression of a hundred alternatives, especially case-insensitive ones. Most
log lines differ from earlier ones only in numbers, so such an expression runs once per line shape. It is split in two
first: the case-insensitive part, in lower case over lower-case text, and the rest.
"""

from __future__ import annotations

import re
from typing import Any, Iterator, List, Optional, Tuple
from typing import Set as Words

error = re.error
escape = re.escape

_LARGE_BYTES = 400
_MOST_REMEMBERED = 50_000
_LONGEST_MATCH = 16 << 10
_NUMBER = re.compile(rb"(?<![A-Za-z0-9_+/=-])[0-9]{1,9}(?:\.[0-9]{1,9})?(?![A-Za-z0-9_+/=-])")


class Options:
    """The options of an expression; those missing here do not change results."""

    class Encoding:
        """The encoding of the text: bytes, as `re` treats expressions of bytes."""

        LATIN1 = 1

    case_sensitive = True


def compile(pattern: Any, options: Optional[Options] = None) -> Any:
    """Compile an expression with `re`; a large one remembers which lines hold no match."""
    flags = 0 if options is None or options.case_sensitive else re.IGNORECASE
    text = pattern.replace(rb"\z", rb"\Z") if isinstance(pattern, bytes) else pattern.replace(r"\z", r"\Z")
    made = re.compile(text, flags)
    return _Remembering(made) if isinstance(text, bytes) and len(text) > _LARGE_BYTES else made


class _Remembering:
    """A large expression over bytes, with the same matches as `re`."""

    def __init__(self, made: Any) -> None:
        self._made = made
        self.pattern: bytes = made.pattern
        parts = _alternatives(made.pattern)
        any_case = [_small(part) for part in parts if part.startswith(_ANY_CASE)]
        others = [part for part in parts if not part.startswith(_ANY_CASE)]
        self._hints = re.compile(b"|".join(any_case)) if any_case else None
        self._others = re.compile(b"|".join(others)) if others else None
        self._clean: Words[Tuple[bytes, bytes]] = set()

    def search(self, text: bytes, pos: int = 0, endpos: Optional[int] = None) -> Any:
        """The first match that begins at or after `pos` and ends before `endpos`."""
        limit = len(text) if endpos is None else min(endpos, len(text))
        end = self._end_of_line(text, pos, limit)
        shape = _without_numbers(text[pos:end])
        while pos < limit:
            next_end = self._end_of_line(text, end, limit)
            next_shape = _without_numbers(text[end:next_end])
            if (shape, next_shape) not in self._clean:
                if self._may_hold(text[pos:next_end]):
                    found = self._made.search(text, pos, min(limit, next_end + _LONGEST_MATCH))
                    if found is not None and found.start() < end:
                        return found
                if len(self._clean) >= _MOST_REMEMBERED:
                    self._clean.clear()
                self._clean.add((shape, next_shape))
            pos, end, shape = end, next_end, next_shape
        return self._made.search(text, limit, limit)

    def _may_hold(self, lines: bytes) -> bool:
        return bool(
            (self._hints and self._hints.search(lines.lower())) or (self._others and self._others.search(lines))
        )

    @staticmethod
    def _end_of_line(text: bytes, pos: int, limit: int) -> int:
        return (text.find(b"\n", pos, limit) + 1) or limit

    def finditer(self, text: bytes, pos: int = 0) -> Iterator[Any]:
        """Yield all matches in order."""
        return iter(self._made.finditer(text, pos))


_ANY_CASE = b"(?i:"
_TOKEN = re.compile(rb"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(|\)|\||.", re.S)
_LETTER = re.compile(rb"\\.|[A-Z]", re.S)


def _alternatives(pattern: bytes) -> List[bytes]:
    """The outermost alternatives of an expression."""
    parts, depth = [b""], 0
    for found in _TOKEN.finditer(pattern):
        token = found[0]
        depth += (token == b"(") - (token == b")")
        if token == b"|" and depth == 0:
            parts.append(b"")
        else:
            parts[-1] += token
    return parts


def _small(pattern: bytes) -> bytes:
    """An expression that finds, in lower-case text, at least what the case-insensitive one finds."""
    plain = pattern.replace(_ANY_CASE, b"(?:").replace(b"(?-i:", b"(?:")
    return _LETTER.sub(lambda found: found[0] if found[0][:1] == b"\\" else found[0].lower(), plain)


def _without_numbers(line: bytes) -> bytes:
    return _NUMBER.sub(b"0", line)


class Set:
    """Words searched together, ignoring case: the way `ddx_tools` uses RE2 sets."""

    def __init__(self) -> None:
        self._words: List[bytes] = []

    @classmethod
    def SearchSet(cls, _: Options) -> Set:
        """An empty set."""
        return cls()

    def Add(self, word: bytes) -> int:
        """Add a word and return its number."""
        self._words.append(word.lower())
        return len(self._words) - 1

    def Compile(self) -> None:
        """Do nothing; RE2 needs this call."""

    def Match(self, text: bytes) -> List[int]:
        """The numbers of the words that occur in a text."""
        small = bytes(text).lower()
        return [number for number, word in enumerate(self._words) if word in small]
