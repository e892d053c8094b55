"""A rank whose data take longer than those of all others, in step after step, as the ranks' own lines say."""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import median

from ddx_tools.logs.event import Event
from ddx_tools.logs.step_events import step_finding
from ddx_tools.model import Finding, Severity, rank_list

_CLEARLY_S = 0.05
_CLEARLY_TIMES = 3.0
"""So much longer than the next: less may be the size of a sample, or a cache."""
_LEAST_STEPS = 4
_SHARE = 0.75
"""Of the steps, the same rank has the longest."""


def slow_input(steps: list[Event]) -> list[Finding]:
    """One finding, if the same rank is clearly the slowest in most of the steps that at least two ranks tell of."""
    lasts = [event for event in steps if event.details.get("inputs") and len(event.ranks) == 1]
    took: dict[float, dict[int, float]] = defaultdict(dict)
    attempt = max((event.attempt for event in lasts), default=0)
    for event in lasts:
        if event.attempt == attempt:
            for step, seconds in event.details["inputs"]:
                took[step][event.ranks[0]] = seconds
    compared = [of_rank for of_rank in took.values() if len(of_rank) > 1]
    slowest = [rank for of_rank in compared if (rank := _clearly_slowest(of_rank)) is not None]
    if not slowest:
        return []
    rank, count = Counter(slowest).most_common(1)[0]
    if count < max(_LEAST_STEPS, _SHARE * len(compared)):
        return []
    own = median(of_rank[rank] for of_rank in compared if rank in of_rank)
    others = median(seconds for of_rank in compared for other, seconds in of_rank.items() if other != rank)
    return [
        step_finding(
            "rank.input_slow",
            Severity.WARNING,
            [event for event in lasts if event.ranks == [rank]] + [event for event in lasts if event.ranks != [rank]],
            f"{rank_list([rank]).capitalize()} takes {own:.2f} s for the data of a step, the others {others:.2f} s "
            f"(medians); it has the longest in {count} of {len(compared)} steps that ranks print.",
            {"input_s": round(own, 3), "others_s": round(others, 3), "steps": len(compared), "slowest_in": count},
            ranks=[rank],
        )
    ]


def _clearly_slowest(of_rank: dict[int, float]) -> int | None:
    """The rank whose data took longer than the next one's, clearly."""
    second, first = sorted(of_rank.values())[-2:]
    if first < second + _CLEARLY_S or first < _CLEARLY_TIMES * second:
        return None
    return max(of_rank, key=lambda rank: of_rank[rank])
