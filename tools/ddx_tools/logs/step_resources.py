"""What lines of progress say of resources: memory that grows with the steps, time that goes into waiting for data."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import pairwise

from ddx_tools.logs.event import Event
from ddx_tools.logs.step_events import step_finding
from ddx_tools.model import Finding, Severity

_LEAST_POINTS = 4
_MOST_SETBACKS = 0.15
_GROWTH = 1.08
_LEAST_LATE_SHARE = 0.2
"""Of the growth, what comes in the second half of the steps: what only warms up levels off."""
_MUCH_INPUT = 0.3


def growing_memory(steps: list[Event]) -> Iterator[Finding]:
    """Whether what is allocated rises from line to line, and goes on to."""
    grown: list[tuple[Event, list[list[float]]]] = []
    for event in steps:
        points = event.details.get("held") or []
        if len(points) >= _LEAST_POINTS and _rises(points):
            grown.append((event, points))
    if not grown:
        return
    event, points = max(grown, key=lambda each: each[1][-1][1] / each[1][0][1])
    (start, first), (end, last) = points[0], points[-1]
    per_step = (last - first) / (end - start)
    yield step_finding(
        "memory.grows",
        Severity.WARNING,
        [each for each, _ in grown],
        f"Allocated GPU memory grew from {first / 2**30:.3g} GiB at step {start:g} to {last / 2**30:.3g} GiB at "
        f"step {end:g}, by {per_step / 2**20:.3g} MiB a step.",
        {
            "first_bytes": int(first),
            "last_bytes": int(last),
            "steps": int(end - start),
            "per_step_bytes": int(per_step),
        },
    )


def _rises(points: list[list[float]]) -> bool:
    (start, first), (end, last) = points[0], points[-1]
    if end <= start or first <= 0 or last < _GROWTH * first:
        return False
    pairs = [(before[1], after[1]) for before, after in pairwise(points)]
    setbacks = sum(after < before for before, after in pairs)
    middle = next(held for step, held in points if step >= (start + end) / 2)
    return setbacks <= _MOST_SETBACKS * len(pairs) and last - middle >= _LEAST_LATE_SHARE * (last - first)


def waiting_for_input(steps: list[Event]) -> Iterator[Finding]:
    """How much of an iteration the meters give to waiting for data; of several ranks' meters, those in the middle.

    What one rank alone waits for data is no matter of the whole job.
    """
    shares = [(statistics.median(event.details["shares"]), event) for event in steps if event.details.get("shares")]
    if not shares:
        return
    of_rank: dict[int | None, tuple[float, Event]] = {}
    for each in shares:
        rank = each[1].ranks[0] if len(each[1].ranks) == 1 else None
        of_rank[rank] = max(of_rank.get(rank, each), each, key=lambda one: one[0])
    ordered = sorted(of_rank.values(), key=lambda each: each[0])
    share, event = ordered[(len(ordered) - 1) // 2]
    much = share >= _MUCH_INPUT
    yield step_finding(
        "job.input_wait",
        Severity.NOTICE if much else Severity.INFO,
        [event],
        f"Waiting for data takes {100 * share:.0f} % of the time of an iteration, as the program's own meters say.",
        {"share": round(share, 3)},
    )
