"""Findings about the numbers in printed steps: steps that take longer and longer, losses that are NaN or infinite."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from ddx_tools.analysis.log_events.log_event import LogEvent, step_finding, step_number, step_position, step_unit
from ddx_tools.model.diagnosis import Finding, Severity, rank_list

_SLOWER = 1.3
_LEAST_POINTS = 12
_SETTLED_STEPS = 10
"""Steps after which a loss scaler has settled: one that starts too high skips its first steps, with an infinite
norm."""


def slowing_steps(steps: list[LogEvent]) -> Iterator[Finding]:
    """Yield a finding if the last steps take clearly longer than the first."""
    slower: list[tuple[LogEvent, float, float, int, int]] = []
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
        f"Steps took {before:.3g} s around step {start}, but {after:.3g} s around step {end}.",
        {"first_s": round(before, 4), "last_s": round(after, 4), "ratio": round(after / before, 2)},
    )


def non_finite_numbers(steps: list[LogEvent]) -> list[Finding]:
    """Return findings about losses and gradient norms that are NaN or infinite."""
    findings: list[Finding] = []
    for name in ("loss", "grad_norm"):
        odd = [event for event in steps if _is_odd(event, name, steps)]
        if odd and not (findings and name == "grad_norm"):
            findings.append(_non_finite_finding(name, odd))
    return findings


def _is_odd(event: LogEvent, name: str, steps: list[LogEvent]) -> bool:
    """Whether a non-finite number means anything: norms in a loss scaler's first steps do not."""
    if name not in (event.details.get("non_finite") or {}):
        return False
    if name == "loss":
        return True
    if name in (event.details.get("finite_again") or ()):
        return False
    end = max((step_number(e) or 0 for e in steps if _same_lines(e, event)), default=0)
    return end - (step_number(event) or 0) >= _SETTLED_STEPS


def _same_lines(one: LogEvent, other: LogEvent) -> bool:
    same_stream = one.details.get("stream") == other.details.get("stream")
    return same_stream and (one.row["source"], one.ranks) == (other.row["source"], other.ranks)


def _non_finite_finding(name: str, odd: list[LogEvent]) -> Finding:
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
        + ("." if lasting else ", but finite again later."),
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


# --- a rank whose data takes longer than that of all others in most steps, according to the ranks' own lines

_CLEARLY = 0.1
"""As a share of a step: how much longer the slow rank's data must take, since the others wait for that long."""
_CLEARLY_TIMES = 3.0
"""How many times as long as the next slowest: smaller differences may come from sample sizes or a cache."""
_LEAST_STEPS = 4
_SHARE = 0.75
"""The share of steps in which the same rank must be the slowest."""


def slow_input(steps: list[LogEvent]) -> Iterator[Finding]:
    """Yield a finding if the same rank is clearly the slowest in most of the steps that at least two ranks report."""
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
        f"(medians); it is the slowest in {count} of {len(compared)} printed steps.",
        {"input_s": round(own, 3), "others_s": round(others, 3), "steps": len(compared), "slowest_in": count},
        ranks=[rank],
    )


def _step_s(lasts: list[LogEvent], steps: list[LogEvent]) -> float | None:
    """The median step time in seconds, from the lines' text or their times; None if neither has it."""
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
    """The rank whose data clearly took longer than the next one's; None if there is none."""
    second, first = sorted(of_rank.values())[-2:]
    if first < second + _CLEARLY * step_s or first < _CLEARLY_TIMES * second:
        return None
    return max(of_rank, key=lambda rank: of_rank[rank])


# --- findings about resources in progress lines: memory that grows with the steps, time spent waiting for data

_LEAST_OF_MEMORY = 4
_MOST_SETBACKS = 0.15
_GROWTH = 1.08
_LEAST_LATE_SHARE = 0.2
"""The least share of growth in the second half of the steps: warm-up growth levels off."""
_MUCH_INPUT = 0.3


def growing_memory(steps: list[LogEvent]) -> Iterator[Finding]:
    """Yield a finding if allocated memory rises from line to line until the end."""
    grown: list[tuple[LogEvent, list[list[float]]]] = []
    for event in steps:
        points = event.details.get("held") or []
        if len(points) >= _LEAST_OF_MEMORY and _rises(points):
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
        f"step {end:g}, by {per_step / 2**20:.3g} MiB per step.",
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


def waiting_for_input(steps: list[LogEvent]) -> Iterator[Finding]:
    """Yield how much of an iteration the program's meters attribute to waiting for data; the median rank, if several
    have meters.

    If only one rank waits for data, that does not describe the whole job.
    """
    shares = [(statistics.median(event.details["shares"]), event) for event in steps if event.details.get("shares")]
    if not shares:
        return
    of_rank: dict[int | None, tuple[float, LogEvent]] = {}
    for each in shares:
        rank = each[1].ranks[0] if len(each[1].ranks) == 1 else None
        of_rank[rank] = max(of_rank.get(rank, each), each, key=lambda one: one[0])
    ordered = sorted(of_rank.values(), key=lambda each: each[0])
    share, event = ordered[(len(ordered) - 1) // 2]
    much = share >= _MUCH_INPUT
    words = f"Waiting for data takes {100 * share:.0f} % of an iteration, according to the program's own meters."
    yield step_finding(
        "job.input_wait", Severity.NOTICE if much else Severity.INFO, [event], words, {"share": round(share, 3)}
    )
