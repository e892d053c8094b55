"""Gradient norms of each rank against that of their mean: a mean is never longer than the longest of its parts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from ddx_tools.logs.event import Event
from ddx_tools.logs.rank_comparison import measured, values_by_step
from ddx_tools.logs.step_events import step_finding
from ddx_tools.model import Finding, Severity

_LONGER = 1.1
_SAME = 1e-4
_LEAST_STEPS = 2


def mean_longer_than_parts(events: list[Event]) -> Iterator[Finding]:
    """Whether what is printed as the mean gradient exceeds every rank's own, at all steps that say both.

    By the triangle inequality ‖mean(g)‖ ≤ max ‖g‖; a sum over N ranks may be N times as long. A number that differs
    between ranks was not reduced over them (an average over time, say), and tells nothing.
    """
    kinds = values_by_step(events)
    own, mean = kinds.get("own_grad_norm", {}), kinds.get("mean_grad_norm", {})
    told: list[tuple[int | None, float, list[Event]]] = []
    for key in own.keys() & mean.keys():
        parts = [value for event in own[key].values() if (value := measured(event)) is not None]
        means = [value for event in mean[key].values() if (value := measured(event)) is not None]
        if len(parts) < 2 or not means or min(parts) <= 0:
            continue
        if max(means) - min(means) > _SAME * max(means) or max(means) < _LONGER * max(parts):
            return
        told.append((key[1], means[0] / statistics.mean(parts), list(own[key].values())))
    if len(told) < _LEAST_STEPS:
        return
    step, ratio, events_at = min(told, key=lambda each: each[0] or 0)
    at = f" at step {step}" if step is not None else ""
    yield step_finding(
        "numerics.mean_longer_than_parts",
        Severity.NOTICE,
        events_at,
        f"What is printed as the mean gradient is {ratio:.2g} times as long as the ranks' own{at}: a mean is never "
        "longer than the longest of them, a sum can be.",
        {"what": "grad_norm", "ratio": round(ratio, 3), "step": step, "ranks_compared": len(events_at)},
    )
