"""The rank that has NaN before any reduction spread it: the first to print one among the values that are its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from ddx_tools.logs.event import Event
from ddx_tools.logs.step_events import step_finding
from ddx_tools.model import Finding, Severity

_Place = tuple[int, int]
"""Step, and how many lines with values came between the last line that names a step and this one."""


@dataclass
class _OfRank:
    """What one rank printed of its own gradient, by place."""

    nan: dict[_Place, Event]
    finite: dict[_Place, Event]

    @property
    def bad_since(self) -> _Place | None:
        """Its first NaN behind which no later step was finite: a loss scaler makes single ones at work."""
        recovered = max((step for step, _ in self.finite), default=-1)
        return min((place for place in self.nan if place[0] >= recovered), default=None)

    @property
    def lasting(self) -> bool:
        """Whether further NaN follow the first, and are the last that it prints."""
        since = self.bad_since
        return since is not None and max(self.nan) > max([since, *self.finite])

    def was_finite_at(self, step: int) -> bool:
        """Whether it printed a finite value at a step or a later one."""
        return any(own >= step for own, _ in self.finite)


def first_with_nan(events: list[Event]) -> Iterator[Finding]:
    """The one rank whose own gradient was NaN while that of all others who print theirs was finite.

    After the reduction all have it. Infinite values count for nothing: a loss scaler produces them at work.
    `first_rank` is named if the NaN lasted; where the log ends with the first, nothing says whether it did.
    """
    own = [event for event in events if event.kind == "value" and event.details["what"] == "own_grad_norm"]
    ranks = _by_rank([event for event in own if event.attempt == max(each.attempt for each in own)])
    begun = {rank: since for rank, of_rank in (ranks or {}).items() if (since := of_rank.bad_since)}
    if not ranks or len(ranks) < 2 or not begun:
        return
    named = {ranks[rank].nan[since].details.get("step") is not None for rank, since in begun.items()}
    # Lines that name no step are compared only behind one and the same: others' may have been left out.
    if len(named) > 1 or (named == {False} and len({step for step, _ in begun.values()}) > 1):
        return
    earliest = min(begun.values())
    first = [rank for rank, since in begun.items() if since == earliest]
    others = [of_rank for rank, of_rank in ranks.items() if rank not in first]
    if len(first) > 1 or not all(of_rank.was_finite_at(earliest[0]) for of_rank in others):
        return
    (rank,) = first
    lasting = ranks[rank].lasting
    where = f"{'at' if named == {True} else 'behind'} step {earliest[0]}"
    yield step_finding(
        "numerics.non_finite",
        Severity.WARNING if lasting else Severity.NOTICE,
        [ranks[rank].nan[earliest]],
        f"Rank {rank}'s own gradient is NaN {where}, where that of all {len(others)} others that print theirs is "
        f"finite{'' if lasting else '; the log ends before it shows whether that lasted'}.",
        {
            "what": "own_grad_norm",
            "value": "nan",
            "step": earliest[0],
            "first_rank": rank if lasting else None,
            "lasting": lasting or None,
        },
    )


def _by_rank(events: list[Event]) -> dict[int, _OfRank] | None:
    """None if the place of a NaN is unknown."""
    found: dict[int, _OfRank] = defaultdict(lambda: _OfRank({}, {}))
    for event in events:
        if len(event.ranks) != 1:
            continue
        is_nan, place = event.details["value"].lower() == "nan", _place(event)
        if place is not None:
            of_rank = found[event.ranks[0]]
            (of_rank.nan if is_nan else of_rank.finite).setdefault(place, event)
        elif is_nan:
            return None
    return found


def _place(event: Event) -> _Place | None:
    step, behind = event.details.get("step"), event.details.get("behind")
    if step is not None:
        return step, 0
    return (behind[0], behind[1]) if behind else None
