"""Ranks that say they came to the end of an epoch, and then nothing, while their peers time out inside of it."""

from __future__ import annotations

from collections import Counter

from ddx_tools.logs.crowd import Crowd
from ddx_tools.logs.event import Event
from ddx_tools.logs.step_events import step_finding
from ddx_tools.model import Finding, Severity, rank_list

_SAYS = "epoch_completed"


def ran_out_of_data(events: list[Event], crowd: Crowd) -> list[Finding]:
    """One finding for all such ranks.

    Only where others print such a line at other times: what one rank prints for all says nothing of that rank. And only
    if nobody who timed out has come to the end of that epoch.
    """
    said = _last_by_rank([event for event in events if event.row["code"] == _SAYS])
    reporters = {rank for event in events if event.limit_expired for rank in event.ranks}
    stepped = _last_by_rank([event for event in events if event.kind == "step"])
    ends = [_epoch(event) for rank, event in said.items() if rank in reporters]
    through = {
        rank: event
        for rank, event in said.items()
        if rank in crowd.silent
        and not (rank in stepped and _is_below(stepped[rank], event))
        and _is_ahead(_epoch(event), ends)
    }
    others = [event for rank, event in said.items() if rank not in through]
    found = [_finding(through, others)] if through and others and len(through) < len(reporters) else []
    # With as many batches as the others have, it is something else behind the epoch that they wait for.
    return [each for each in found if each.attributes["batches"] != [each.attributes["batches_of_others"]]]


def _last_by_rank(events: list[Event]) -> dict[int, Event]:
    last: dict[int, Event] = {}
    for event in events:
        if len(event.ranks) == 1:
            known = last.setdefault(event.ranks[0], event)
            last[event.ranks[0]] = event if _is_below(event, known) else known
    return last


def _is_below(one: Event, other: Event) -> bool:
    """Whether it stands later in the output of a rank: in that of a later attempt, or further down."""
    return (one.attempt, one.row["source_line"] or 0) > (other.attempt, other.row["source_line"] or 0)


def _epoch(event: Event) -> int | None:
    number = event.details.get("epoch")
    return None if number is None else int(number)


def _is_ahead(epoch: int | None, ends: list[int | None]) -> bool:
    """Whether the epoch is behind none that those who timed out came to the end of."""
    return all(epoch is not None and end is not None and end < epoch for end in ends)


def _finding(through: dict[int, Event], others: list[Event]) -> Finding:
    batches = sorted({int(event.details["batches"]) for event in through.values()})
    usual = Counter(int(event.details["batches"]) for event in others).most_common(1)[0][0]
    epochs = {_epoch(event) for event in through.values()}
    who = rank_list(list(through)).capitalize()
    says = "says that it is" if len(through) == 1 else "say that they are"
    return step_finding(
        "data.exhausted",
        Severity.WARNING,
        list(through.values()),
        f"{who} {says} through with the epoch after {', '.join(map(str, batches))} batches, and nothing since; "
        f"others had {usual} in an epoch.",
        {"epoch": epochs.pop() if len(epochs) == 1 else None, "batches": batches, "batches_of_others": usual},
        ranks=through,
    )
