"""A rank whose data take longer than those of all others, in step after step, as the ranks' own lines say."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from statistics import median

from ddx_tools.logs.event import Event
from ddx_tools.logs.step_events import step_finding, step_number
from ddx_tools.model import Finding, Severity, rank_list

_CLEARLY = 0.1
"""Of a step: the others wait for so much of it, if one rank's data take longer by that."""
_CLEARLY_TIMES = 3.0
"""So much longer than the next: less may be the size of a sample, or a cache."""
_LEAST_STEPS = 4
_SHARE = 0.75
"""Of the steps, the same rank has the longest."""


def slow_input(steps: list[Event]) -> Iterator[Finding]:
    """One finding, if the same rank is clearly the slowest in most of the steps that at least two ranks tell of."""
    lasts = [event for event in steps if event.details.get("inputs") and len(event.ranks) == 1]
    took: dict[float, dict[int, float]] = defaultdict(dict)
    attempt = max((event.attempt for event in lasts), default=0)
    for event in lasts:
        if event.attempt == attempt:
            for step, seconds, _ in event.details["inputs"]:
                took[step][event.ranks[0]] = seconds
    compared = [of_rank for of_rank in took.values() if len(of_rank) > 1]
    step_s = _step_s(lasts, steps)
    if step_s is None:
        return
    slowest = [rank for of_rank in compared if (rank := _clearly_slowest(of_rank, step_s)) is not None]
    if not slowest:
        return
    rank, count = Counter(slowest).most_common(1)[0]
    if count < max(_LEAST_STEPS, _SHARE * len(compared)):
        return
    own = median(of_rank[rank] for of_rank in compared if rank in of_rank)
    others = median(seconds for of_rank in compared for other, seconds in of_rank.items() if other != rank)
    yield step_finding(
        "rank.input_slow",
        Severity.WARNING,
        [event for event in lasts if event.ranks == [rank]] + [event for event in lasts if event.ranks != [rank]],
        f"{rank_list([rank]).capitalize()} takes {own:.2f} s for the data of a step, the others {others:.2f} s "
        f"(medians); it has the longest in {count} of {len(compared)} steps that ranks print.",
        {"input_s": round(own, 3), "others_s": round(others, 3), "steps": len(compared), "slowest_in": count},
        ranks=[rank],
    )


def _step_s(lasts: list[Event], steps: list[Event]) -> float | None:
    """Seconds of a step (median), as the lines say, or as their times do; None if neither tells."""
    said: list[float] = [whole for event in lasts for _, _, whole in event.details["inputs"] if whole is not None]
    if said:
        return median(said)
    places = {(event.row["source"], *event.ranks, event.details["shape"]): event for event in lasts}
    paced: list[float] = []
    for event in steps:
        last = places.get((event.row["source"], *event.ranks, event.details.get("shape")))
        if event.details["what"] != "first" or last is None or None in (event.row["time_s"], last.row["time_s"]):
            continue
        made = (step_number(last) or 0) - (step_number(event) or 0)
        if made > 0:
            paced.append((last.row["time_s"] - event.row["time_s"]) / made)
    return median(paced) if paced else None


def _clearly_slowest(of_rank: dict[int, float], step_s: float) -> int | None:
    """The rank whose data took longer than the next one's, clearly."""
    second, first = sorted(of_rank.values())[-2:]
    if first < second + _CLEARLY * step_s or first < _CLEARLY_TIMES * second:
        return None
    return max(of_rank, key=lambda rank: of_rank[rank])
