"""Unions of intervals against brute force, moment by moment."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.parsers.profiles.rank_trace import Busy, RankTrace
from ddx_tools.probes.profile.findings import union_ns
from ddx_tools.probes.profile.material import PARTS, where_time_went

pytestmark = pytest.mark.slow

END = 40
Span = tuple[int, int]
SPAN = st.tuples(st.integers(0, END), st.integers(0, END)).map(lambda ends: (min(ends), max(ends)))
SPANS = st.lists(SPAN, max_size=6)
ON_LANE = st.lists(st.tuples(st.integers(0, 2), SPAN), max_size=6)


def is_in(moment: int, spans: list[Span]) -> bool:
    """Whether a moment lies in one of some intervals."""
    return any(start <= moment < end for start, end in spans)


def by_moments(trace: RankTrace, steps: list[tuple[int, Span]]) -> tuple[dict[int | None, dict[str, int]], list[str]]:
    """Each step's parts, and to which part each moment belongs, without any interval arithmetic."""

    def active(moment: int, what: Busy, lane: int | None = None, *, on_host: bool = False) -> bool:
        table = trace.on_host if on_host else trace.intervals
        rows = zip(table.what, table.lane, table.start_ns, table.end_ns, strict=True)
        return is_in(
            moment, [(start, end) for kind, where, start, end in rows if kind == what and lane in (None, where)]
        )

    def works(moment: int) -> bool:
        return active(moment, Busy.COMPUTE) or any(
            active(moment, Busy.COMPUTE, lane, on_host=True) and not active(moment, Busy.HANDS_OVER, lane, on_host=True)
            for lane in set(trace.on_host.lane)
        )

    def communicates(moment: int) -> bool:
        return active(moment, Busy.COMMUNICATION) or active(moment, Busy.COMMUNICATION, on_host=True)

    gpu = trace.device == "gpu"
    seen = [t for t in range(END) if works(t) or communicates(t) or any(active(t, what) for what in Busy)]
    moments = range(min(seen), max(seen) + 1) if seen else range(0)
    idle = [not (works(t) or communicates(t) or active(t, Busy.COPY)) for t in moments]
    parts = []
    found: dict[int | None, dict[str, int]] = {}
    for place, t in enumerate(moments):
        first = last = place
        while idle[place] and first > 0 and idle[first - 1]:
            first -= 1
        while idle[place] and last + 1 < len(idle) and idle[last + 1]:
            last += 1
        fetches = active(t, Busy.DATA)
        ladder = {
            "compute": works(t) and (gpu or not fetches),
            "data on the CPU": fetches and not gpu,
            "exposed": communicates(t),
            "copy": active(t, Busy.COPY),
            "data": fetches,
            "wait": any(active(moments[n], Busy.WAIT) for n in range(first, last + 1)),
            "host": True,
        }
        parts.append(next(part for part, holds in ladder.items() if holds).split()[0])
        inside = [number for number, span in steps if is_in(t, [span])]
        if len(inside) == 1 or not steps:
            mine = found.setdefault(inside[0] if steps else None, dict.fromkeys(PARTS, 0))
            mine[f"{parts[-1]}_ns"] += 1
    return found, ["host"] * (moments.start) + parts


@given(st.booleans(), st.tuples(SPANS, SPANS, SPANS, SPANS, SPANS), ON_LANE, ON_LANE, st.sets(st.integers(0, END)))
def test_parts_of_steps_are_those_of_each_moment(
    gpu: bool,
    on_device: tuple[list[Span], ...],
    operators: list[tuple[int, Span]],
    handing_over: list[tuple[int, Span]],
    edges: set[int],
) -> None:
    trace = RankTrace(device="gpu" if gpu else "cpu")
    for what, spans in zip(Busy, on_device, strict=False):
        for start, end in spans if gpu or what is not Busy.COMPUTE else []:
            trace.intervals.add(what, 0, start, end)
    for what, on_lanes in ((Busy.COMPUTE, operators), (Busy.HANDS_OVER, handing_over)):
        for lane, (start, end) in on_lanes if not gpu else []:
            trace.on_host.add(what, lane, start, end)
    steps = [(number + 5, span) for number, span in enumerate(pairwise(sorted(edges)[:4]))]
    for number, (start, end) in steps:
        trace.intervals.add(Busy.STEP, number, start, end)
    collectives = on_device[Busy.COMMUNICATION]
    trace.collectives = [{"start_ns": start, "end_ns": end} for start, end in collectives]

    rows, exposed = where_time_went(trace)
    expected, parts = by_moments(trace, steps)
    assert {row["step"]: {part: row[part] for part in PARTS} for row in rows} == expected
    assert all(row["step_ns"] == sum(row[part] for part in PARTS) for row in rows)
    assert [ns for ns, _ in exposed] == [parts[start:end].count("exposed") for start, end in collectives]


@given(SPANS)
def test_a_union_counts_each_moment_once(spans: list[Span]) -> None:
    assert union_ns(spans) == sum(is_in(moment, spans) for moment in range(END))
