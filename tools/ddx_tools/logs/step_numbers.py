"""What the numbers beside printed steps say: steps that take longer and longer, losses that are no numbers."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from ddx_tools.logs.event import Event
from ddx_tools.logs.step_events import step_finding, step_number, step_position, step_unit
from ddx_tools.model import Finding, Severity, rank_list

_SLOWER = 1.3
_LEAST_POINTS = 12
_SETTLED_STEPS = 10
"""A loss scaler that starts too high skips its first steps with an infinite norm, one after the other."""


def slowing_steps(steps: list[Event]) -> Iterator[Finding]:
    """Whether the last steps take clearly longer than the first."""
    slower: list[tuple[Event, float, float, int, int]] = []
    for event in steps:
        points = (event.details.get("points") or [])[1:]  # the first step compiles and warms up
        if len(points) < _LEAST_POINTS:
            continue
        part = len(points) // 4
        first, last = [s for _, s in points[:part]], [s for _, s in points[-part:]]
        before, after = statistics.median(first), statistics.median(last)
        if before > 0 and after >= _SLOWER * before and min(last) > max(first):
            slower.append((event, before, after, int(points[0][0]), int(points[-1][0])))
    if not slower:
        return
    _, before, after, start, end = max(slower, key=lambda each: each[2] / each[1])
    told = [event for event, *_ in slower]
    yield step_finding(
        "job.slowing",
        Severity.NOTICE,
        told,
        f"A step took {before:.3g} s about step {start}, and {after:.3g} s about step {end}.",
        {"first_s": round(before, 4), "last_s": round(after, 4), "ratio": round(after / before, 2)},
    )


def non_finite_numbers(steps: list[Event]) -> list[Finding]:
    """Losses and gradient norms that are NaN or infinite."""
    findings: list[Finding] = []
    for name in ("loss", "grad_norm"):
        odd = [event for event in steps if _is_odd(event, name, steps)]
        if odd and not (findings and name == "grad_norm"):
            findings.append(_non_finite_finding(name, odd))
    return findings


def _is_odd(event: Event, name: str, steps: list[Event]) -> bool:
    """Whether a number is not finite and means anything: the norms that a loss scaler's first steps have do not."""
    if name not in (event.details.get("non_finite") or {}):
        return False
    if name == "loss":
        return True
    if name in (event.details.get("finite_again") or ()):
        return False
    end = max((step_number(e) or 0 for e in steps if _same_lines(e, event)), default=0)
    return end - (step_number(event) or 0) >= _SETTLED_STEPS


def _same_lines(one: Event, other: Event) -> bool:
    same_stream = one.details.get("stream") == other.details.get("stream")
    return same_stream and (one.row["source"], one.ranks) == (other.row["source"], other.ranks)


def _non_finite_finding(name: str, odd: list[Event]) -> Finding:
    first = min(odd, key=lambda event: (*step_position(event), event.row["source_line"]))
    ranks = {rank for event in odd for rank in event.ranks}
    earliest = {rank for event in odd if step_position(event) == step_position(first) for rank in event.ranks}
    lasting = not any(name in (event.details.get("finite_again") or ()) for event in odd)
    value = first.details["non_finite"][name]
    number = step_number(first)
    where = f" at {step_unit(first)} {number}" if number is not None else ""
    what = "loss" if name == "loss" else "gradient norm"
    who = f" ({rank_list(earliest)})" if earliest else ""
    return step_finding(
        "numerics.non_finite",
        Severity.WARNING if lasting else Severity.NOTICE,
        [first, *(event for event in odd if event is not first)],
        f"The {what} is {'NaN' if value == 'nan' else 'infinite'}{where}{who}"
        + ("." if lasting else ", and finite again later."),
        {
            "what": name,
            "value": value,
            "step": number,
            "epoch": first.details.get("epoch"),
            "first_rank": next(iter(earliest)) if len(earliest) == 1 and len(ranks) > 1 else None,
            "lasting": lasting,
        },
        ranks=sorted(earliest),
    )
