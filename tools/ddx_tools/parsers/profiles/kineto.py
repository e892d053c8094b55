"""Reads one rank's trace of torch.profiler (Kineto): busy intervals of streams, threads and ranges, and collectives."""

from __future__ import annotations

from typing import Any, BinaryIO

from ddx_tools.parsers.profiles.rank_trace import (
    MOST_NS,
    Busy,
    Intervals,
    RankTrace,
    collective_of,
    expression,
    is_named,
    operation_of,
    size_of,
    text_of,
    whole,
)
from ddx_tools.parsers.profiles.trace_json import TraceEvent, TraceReader, arguments

_MOST_DIMS = 16


def read_trace(stream: BinaryIO) -> RankTrace:
    """Read a trace. Raises `UnreadableInput` if it is not one."""
    reader = TraceReader(stream)
    found = RankTrace()
    handlers = {
        "kernel": _kernel,
        "gpu_memcpy": _copy,
        "gpu_memset": _copy,
        "cuda_runtime": _runtime,
        "cuda_driver": _runtime,
        "cpu_op": _operator,
        "user_annotation": _range,
    }
    base_ns: int | None = None
    for piece in reader.events():
        if base_ns is None:
            base_ns = whole(reader.about.get("baseTimeNanoseconds")) or 0
        found.events += len(piece)
        for event in piece:
            if event.ph != "X" or (handle := handlers.get(event.cat)) is None or event.dur < 0:
                continue
            start_ns = base_ns + int(event.ts * 1000) if abs(event.ts) < MOST_NS / 1000 else -1
            end_ns = start_ns + int(min(event.dur, MOST_NS / 1000) * 1000)
            if 0 <= start_ns <= end_ns < MOST_NS:
                handle(found, event, start_ns, end_ns)
    found.about, found.problems = reader.about, reader.problems
    found.cut_at_updates()
    if found.device == "gpu":
        found.on_host = Intervals()
        found.collectives = [each for each in found.collectives if each["on_gpu"]]
    return found


def _kernel(found: RankTrace, event: TraceEvent, start_ns: int, end_ns: int) -> None:
    if not found.add_kernel(event.name, _lane(event), start_ns, end_ns):
        return
    said = arguments(event)
    called = text_of(said.get("Collective name")) or operation_of(event.name)
    op, which, _ = collective_of(called)
    count = whole(said.get("Out msg nelems" if which == "out" else "In msg nelems"))
    group = text_of(said.get("Process Group Name"))
    found.add_collective(
        start_ns,
        end_ns,
        op=op,
        size_bytes=size_of(count, text_of(said.get("dtype"))),
        group_name=group,
        group_desc=text_of(said.get("Process Group Description")),
        group_size=whole(said.get("Group size")),
        on_gpu=True,
    )


def _copy(found: RankTrace, event: TraceEvent, start_ns: int, end_ns: int) -> None:
    found.device = "gpu"
    found.intervals.add(Busy.COPY, _lane(event), start_ns, end_ns)


def _runtime(found: RankTrace, event: TraceEvent, start_ns: int, end_ns: int) -> None:
    if is_named(event.name, "waits"):
        found.intervals.add(Busy.WAIT, _lane(event), start_ns, end_ns)


def _operator(found: RankTrace, event: TraceEvent, start_ns: int, end_ns: int) -> None:
    if found.device == "cpu":
        what = Busy.HANDS_OVER if is_named(event.name, "hands_over") else Busy.COMPUTE
        found.on_host.add(what, _lane(event), start_ns, end_ns)


def _range(found: RankTrace, event: TraceEvent, start_ns: int, end_ns: int) -> None:
    name = event.name
    if match := expression("step").match(name):
        found.intervals.add(Busy.STEP, int(match[1]), start_ns, end_ns)
    elif is_named(name, "updates"):
        found.add_update(name, end_ns)
    elif is_named(name, "data"):
        found.intervals.add(Busy.DATA, _lane(event), start_ns, end_ns)
    elif found.device == "cpu" and is_named(name, "on_cpu"):
        found.on_host.add(Busy.COMMUNICATION, _lane(event), start_ns, end_ns)
        said = arguments(event)
        op, _, _ = collective_of(name.partition(":")[2])
        count = _elements(said.get("Input Dims"))
        types = said.get("Input type")
        size = size_of(count, text_of(types[0]) if isinstance(types, list) and types else None)
        found.add_collective(start_ns, end_ns, op=op, size_bytes=size, on_gpu=False)


def _lane(event: TraceEvent) -> int:
    return event.tid if isinstance(event.tid, int) and abs(event.tid) < MOST_NS else 0


def _elements(dims: Any) -> int | None:
    """The number of elements in all tensors of an operation: `[[262656]]`, or a list of such for a list of tensors."""
    total = 0
    for each in dims if isinstance(dims, list) else ():
        if not isinstance(each, list) or len(each) > _MOST_DIMS:
            return None
        if each and isinstance(each[0], list):
            inner = _elements(each)
            total += inner or 0
            continue
        count = 1
        for dim in each:
            if (size := whole(dim)) is None:
                return None
            count *= size
        total += count
    return total or None
