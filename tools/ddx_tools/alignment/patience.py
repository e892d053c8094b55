"""How long ranks of a healthy job wait for each other."""

from __future__ import annotations

SETTLED_S = 2.0
"""Shorter waits, or dumps closer in time, say nothing: ranks of a healthy job differ by as much."""


def patience_for(longest_s: float) -> float:
    """Seconds that a rank may wait without anything being wrong, where the longest operation took `longest_s`."""
    return max(SETTLED_S, 2 * longest_s)
