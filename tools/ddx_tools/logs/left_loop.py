"""Ranks that say they leave the training loop, while others are still in it and time out."""

from __future__ import annotations

from collections.abc import Iterator

from ddx_tools.logs.event import Event
from ddx_tools.logs.step_events import step_finding, step_number
from ddx_tools.model import Finding, Severity, rank_list

_SAYS = "rank_leaves_loop"


def left_the_loop(events: list[Event]) -> Iterator[Finding]:
    """One finding for all such ranks.

    Only if others, who print steps or wait, say nothing of the kind: a stop that all ranks agree on is none of this.
    """
    said = {rank: event for event in events if event.row["code"] == _SAYS for rank in event.ranks}
    at_work = (event for event in events if event.kind == "step" or event.limit_expired)
    stay = {rank: event for event in at_work for rank in event.ranks if rank not in said}
    if not said or not stay or len(said) >= len(stay) or not any(event.limit_expired for event in events):
        return
    if any(event.limit_expired and set(event.ranks) & said.keys() for event in events):
        return
    who = rank_list(list(said)).capitalize()
    steps = sorted({number for event in stay.values() if (number := step_number(event)) is not None})
    at = f", whose last step is {steps[-1]}" if steps else ""
    yield step_finding(
        "rank.left_loop",
        Severity.WARNING,
        [*said.values(), *stay.values()],
        f"{who} {'says' if len(said) == 1 else 'say'} on the way out that the loop is left; "
        f"{rank_list(list(stay))} do not{at}.",
        {"others": len(stay)},
        ranks=said,
    )
