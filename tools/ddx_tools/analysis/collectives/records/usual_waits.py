"""How long ranks of a healthy job wait for each other."""

from __future__ import annotations

SETTLED_S = 2.0
"""Shorter waits, or dumps closer in time, say nothing: ranks of a healthy job differ by as much."""

STANDING_S = 30.0
"""Nothing that a moving job waits for takes as long, where no finished operation tells how long they take."""


def patience_for(longest_s: float, *, only_active: bool) -> float:
    """Seconds that a rank may wait without anything being wrong, where the longest operation took `longest_s`.

    Records of active work hold no finished operation.
    """
    return STANDING_S if only_active else max(SETTLED_S, 2 * longest_s)
