"""Expressions over bytes on RE2: their time grows with the text, whatever an attacker writes into it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import re2

_MEMORY_BYTES = 64 << 20


def compiled(pattern: str) -> Any:
    """An expression that sees bytes, not letters: offsets need no translation. Raises re2.error."""
    return re2.compile(pattern.encode(), _options())


_UPPER_BOUND = re.compile(r"\{(\d+),\d{2,}\}")


def unbounded(pattern: str) -> str:
    """The same without the upper bounds of its longer repetitions: matches wherever that does, with few states."""
    return _UPPER_BOUND.sub(r"{\1,}", pattern)


def compiled_words(words: Iterable[bytes]) -> Any:
    """Words in any case: `Match` of a text gives the numbers of those that stand in it, in one pass."""
    options = _options()
    options.case_sensitive = False
    options.literal = True
    together = re2.Set.SearchSet(options)
    for word in words:
        together.Add(word)
    together.Compile()
    return together


def _options() -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.max_mem = _MEMORY_BYTES
    options.log_errors = False
    return options


def matches_within(pattern: Any, line: bytes, begin: int, limit: int) -> Iterator[Any]:
    """The matches that begin within a stretch."""
    for match in pattern.finditer(line, begin):
        if match.start() >= limit:
            return
        yield match
