"""Logs of two runs, side by side: a gradient norm that is a whole multiple of the other's at an equal loss."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from ddx_tools.logs.event import Event
from ddx_tools.logs.step_events import step_finding
from ddx_tools.model import Finding, Severity

_SAME_LOSS = 0.003
_WHOLE = 0.005
_MOST_RUNS = 16
_LARGEST_GROUP = 65_536


def ratio_between_runs(steps: list[Event]) -> Iterator[Finding]:
    """Whether two logs print, at the same step and loss, gradient norms whose ratio is a whole number above 1."""
    firsts = [
        event
        for event in steps
        if event.details.get("what") == "first" and event.details.get("loss") and event.details.get("grad_norm")
    ][:_MOST_RUNS]
    found = [told for one, other in combinations(firsts, 2) if (told := _ratio(one, other))]
    if not found:
        return
    ratio, low, high = max(found, key=lambda each: each[0])
    step = low.details.get("step")
    yield step_finding(
        "numerics.ratio_between_runs",
        Severity.NOTICE,
        [high, low],
        f"At step {step} two runs print the same loss, and gradient norms of which one is {ratio} times the other.",
        {"what": "grad_norm", "ratio": ratio, "step": step},
    )


def _ratio(one: Event, other: Event) -> tuple[int, Event, Event] | None:
    low, high = sorted((one, other), key=lambda event: event.details["grad_norm"])
    if one.row["source"] == other.row["source"] or one.ranks != other.ranks:
        return None
    if one.details.get("step") is None or one.details.get("step") != other.details.get("step"):
        return None
    if low.details["grad_norm"] <= 0 or abs(one.details["loss"] / other.details["loss"] - 1) > _SAME_LOSS:
        return None
    ratio = high.details["grad_norm"] / low.details["grad_norm"]
    if ratio > _LARGEST_GROUP:
        return None
    whole = round(ratio)
    return (whole, low, high) if whole >= 2 and abs(ratio / whole - 1) <= _WHOLE else None
