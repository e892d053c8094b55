"""Putting together what belongs together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def gathered(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, in their order; the keys in the order in which they come first."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
