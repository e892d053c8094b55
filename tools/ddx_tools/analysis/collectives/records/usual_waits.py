"""How long ranks of a healthy job wait for each other, in seconds."""

from __future__ import annotations

SETTLED_S = 2.0
"""Shorter waits, or dumps closer in time, mean nothing: ranks of a healthy job differ by this much."""

BRIEF_S = 10.0
"""Ranks that are at work keep their peers waiting this long now and then: a long sample, a late batch, a write."""

OF_FILES_S = 5.0
"""Files that nobody took because of a hang may show waits of this long: a barrier, a late batch, a write."""

STANDING_S = 30.0
"""No wait in a moving job takes this long; used where no finished operation shows how long operations take."""


def patience_for(longest_s: float, *, only_active: bool, asked: bool) -> float:
    """Return how many seconds a rank may wait before its wait counts as abnormal.

    `longest_s`: how long the longest finished operation took; with `only_active`, the records hold none, so a fixed
    limit applies. `asked`: ddx took the records because somebody asked why the job hangs; other files may be of a
    healthy job.
    """
    return STANDING_S if only_active else max(SETTLED_S if asked else OF_FILES_S, 2 * longest_s)
