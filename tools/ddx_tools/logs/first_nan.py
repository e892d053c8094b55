"""The rank that has NaN before any reduction spread it: the first to print one among the values that are its own."""

from __future__ import annotations

from ddx_tools.logs.event import Event
from ddx_tools.logs.step_events import step_finding
from ddx_tools.model import Finding, Severity


def first_with_nan(events: list[Event]) -> list[Finding]:
    """The one rank whose own gradient was NaN before any other's was, if at least two ranks print theirs.

    After the reduction all have it. Infinite values count for nothing: a loss scaler produces them at work.
    """
    own = [event for event in events if event.kind == "value" and event.details["what"] == "own_grad_norm"]
    ranks = {event.ranks[0] for event in own if len(event.ranks) == 1}
    placed: dict[int, tuple[tuple[int, int], Event]] = {}
    for event in own:
        if len(event.ranks) == 1 and event.details["value"].lower() == "nan":
            place = _place(event)
            if place is None:
                return []
            known = placed.setdefault(event.ranks[0], (place, event))
            placed[event.ranks[0]] = min(known, (place, event), key=lambda each: each[0])
    if len(ranks) < 2 or not placed or not _comparable([event for _, event in placed.values()]):
        return []
    earliest = min(place for place, _ in placed.values())
    first = [(rank, event) for rank, (place, event) in placed.items() if place == earliest]
    if len(first) > 1:
        return []
    ((rank, event),) = first
    where = f"at step {earliest[0]}" if event.details.get("step") is not None else f"behind step {earliest[0]}"
    return [
        step_finding(
            "numerics.non_finite",
            Severity.WARNING,
            [event],
            f"Rank {rank}'s own gradient is NaN {where}, before that of any other of {len(ranks)} ranks.",
            {"what": "own_grad_norm", "value": "nan", "step": earliest[0], "first_rank": rank, "lasting": None},
        )
    ]


def _place(event: Event) -> tuple[int, int] | None:
    """Step, and how many lines with values came between the last step and this one."""
    step, behind = event.details.get("step"), event.details.get("behind")
    if step is not None:
        return step, 0
    return (behind[0], behind[1]) if behind else None


def _comparable(events: list[Event]) -> bool:
    """Lines that name no step are compared only behind one and the same: others' may have been left out."""
    if all(event.details.get("step") is not None for event in events):
        return True
    return len({event.details["behind"][0] for event in events if event.details.get("behind")}) == 1 and all(
        event.details.get("step") is None for event in events
    )
