"""Byte expressions on RE2: their time is linear in the text, whatever an attacker writes into it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import re2

_MEMORY_BYTES = 64 << 20


def compiled(pattern: str) -> Any:
    """Compile an expression over bytes, so that offsets need no translation. Raises re2.error."""
    return re2.compile(pattern.encode(), _options())


_UPPER_BOUND = re.compile(r"\{(\d+),\d{2,}\}")


def unbounded(pattern: str) -> str:
    """Drop the upper bounds of longer repetitions: it matches wherever the original does, with fewer states."""
    return _UPPER_BOUND.sub(r"{\1,}", pattern)


def compiled_words(words: Iterable[bytes]) -> Any:
    """A set of words, case-insensitive; its `Match` returns the numbers of those in a text, in one pass."""
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
    """Yield the matches of a pattern that begin between positions `begin` and `limit` of a line.

    A match may end after `limit`.
    """
    for match in pattern.finditer(line, begin):
        if match.start() >= limit:
            return
        yield match
