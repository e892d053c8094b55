"""Reads one rank's profiler trace: the busy intervals of its streams, threads and ranges, and its collectives.

A trace with kernels is about the GPU: its computing is the work on streams. A trace without any (a Gloo job) is about
the CPU: its computing is the work of operators on threads, except those that only hand work to a process group.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from itertools import pairwise
from typing import Any, BinaryIO

from ddx_tools.knowledge.load import shipped
from ddx_tools.parsers.profiles.trace_json import TraceEvent, TraceReader, arguments

_MOST_NS = 1 << 62
_MOST_NAME = 300
_MOST_NAMES = 100_000
"""The maximum number of distinct kernel names."""
_MOST_COLLECTIVES = 500_000
_MOST_DIMS = 16


class Busy(IntEnum):
    """The kind of an interval in a trace."""

    COMPUTE = 0
    """A kernel, or an operator of a CPU job."""
    COMMUNICATION = 1
    COPY = 2
    DATA = 3
    """The main process fetches its next batch."""
    WAIT = 4
    """The host waits for the GPU."""
    HANDS_OVER = 5
    """An operator that hands work to a process group, or waits for it."""
    STEP = 6


@dataclass
class Intervals:
    """Columns of intervals, in ns since the epoch; `lane` is a stream or thread, or the number of a step."""

    what: array[int] = field(default_factory=lambda: array("b"))
    lane: array[int] = field(default_factory=lambda: array("q"))
    start_ns: array[int] = field(default_factory=lambda: array("q"))
    end_ns: array[int] = field(default_factory=lambda: array("q"))

    def add(self, what: Busy, lane: int, start_ns: int, end_ns: int) -> None:
        """Add one interval."""
        self.what.append(what)
        self.lane.append(lane)
        self.start_ns.append(start_ns)
        self.end_ns.append(end_ns)


@dataclass
class RankTrace:
    """One rank's trace. Times in ns since the epoch, on the rank's own clock."""

    about: dict[str, Any] = field(default_factory=dict)
    events: int = 0
    device: str = "cpu"
    """`gpu` if kernels were recorded, else `cpu`."""
    steps_by: str = "profiler"
    """What marks its steps: `profiler`, or `optimizer` if the program does not call the profiler's `step`."""
    intervals: Intervals = field(default_factory=Intervals)
    on_host: Intervals = field(default_factory=Intervals)
    """The CPU operators, which are the computing of a trace without kernels."""
    collectives: list[dict[str, Any]] = field(default_factory=list)
    """The collectives, with the columns of `trace_collectives`."""
    kernels: dict[str, list[Any]] = field(default_factory=dict)
    """Kernels by name: class, count, ns."""
    problems: list[str] = field(default_factory=list)
    updates: dict[str, list[int]] = field(default_factory=dict)
    """The end times of optimizer steps, by the step's name: a trace without marked steps is cut there."""

    @property
    def rank(self) -> int | None:
        """The rank, from the trace itself."""
        return _whole(self._distributed.get("rank"))

    @property
    def world_size(self) -> int | None:
        """The number of ranks in the job, from the trace itself."""
        return _whole(self._distributed.get("world_size"))

    @property
    def host(self) -> str | None:
        """The host name, from the trace itself."""
        name = self.about.get("host_name")
        return name[:256] if isinstance(name, str) else None

    @property
    def _distributed(self) -> dict[str, Any]:
        said = self.about.get("distributedInfo")
        return said if isinstance(said, dict) else {}


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
            base_ns = _whole(reader.about.get("baseTimeNanoseconds")) or 0
        found.events += len(piece)
        for event in piece:
            if event.ph != "X" or (handle := handlers.get(event.cat)) is None or event.dur < 0:
                continue
            start_ns = base_ns + int(event.ts * 1000) if abs(event.ts) < _MOST_NS / 1000 else -1
            end_ns = start_ns + int(min(event.dur, _MOST_NS / 1000) * 1000)
            if 0 <= start_ns <= end_ns < _MOST_NS:
                handle(found, event, start_ns, end_ns)
    found.about, found.problems = reader.about, reader.problems
    if found.updates and Busy.STEP not in found.intervals.what:
        _cut_at(found, sorted(max(found.updates.items(), key=lambda each: len(each[1]))[1]))
    if found.device == "gpu":
        found.on_host = Intervals()
        found.collectives = [each for each in found.collectives if each["on_gpu"]]
    return found


def _kernel(found: RankTrace, event: TraceEvent, start_ns: int, end_ns: int) -> None:
    found.device = "gpu"
    name = event.name[:_MOST_NAME]
    known = found.kernels.get(name)
    if known is None:
        known = [kernel_class(name), 0, 0]
        if len(found.kernels) < _MOST_NAMES:
            found.kernels[name] = known
    known[1] += 1
    known[2] += end_ns - start_ns
    if known[0] != "communication":
        found.intervals.add(Busy.COMPUTE, _lane(event), start_ns, end_ns)
        return
    found.intervals.add(Busy.COMMUNICATION, _lane(event), start_ns, end_ns)
    said = arguments(event)
    called = _text(said.get("Collective name")) or next(iter(re.findall(r"Kernel_([A-Za-z]+)", name)), "")
    op, which, _ = collective_of(called)
    count = _whole(said.get("Out msg nelems" if which == "out" else "In msg nelems"))
    group = _text(said.get("Process Group Name"))
    _collective(
        found,
        start_ns,
        end_ns,
        op=op,
        size_bytes=_size(count, _text(said.get("dtype"))),
        group_name=group,
        group_desc=_text(said.get("Process Group Description")),
        group_size=_whole(said.get("Group size")),
        on_gpu=True,
    )


def _copy(found: RankTrace, event: TraceEvent, start_ns: int, end_ns: int) -> None:
    found.device = "gpu"
    found.intervals.add(Busy.COPY, _lane(event), start_ns, end_ns)


def _runtime(found: RankTrace, event: TraceEvent, start_ns: int, end_ns: int) -> None:
    if _is(event.name, "waits"):
        found.intervals.add(Busy.WAIT, _lane(event), start_ns, end_ns)


def _operator(found: RankTrace, event: TraceEvent, start_ns: int, end_ns: int) -> None:
    if found.device == "cpu":
        what = Busy.HANDS_OVER if _is(event.name, "hands_over") else Busy.COMPUTE
        found.on_host.add(what, _lane(event), start_ns, end_ns)


def _range(found: RankTrace, event: TraceEvent, start_ns: int, end_ns: int) -> None:
    name = event.name
    if match := _expression("step").match(name):
        found.intervals.add(Busy.STEP, int(match[1]), start_ns, end_ns)
    elif _is(name, "updates"):
        found.updates.setdefault(name[:_MOST_NAME], []).append(end_ns)
    elif _is(name, "data"):
        found.intervals.add(Busy.DATA, _lane(event), start_ns, end_ns)
    elif found.device == "cpu" and _is(name, "on_cpu"):
        found.on_host.add(Busy.COMMUNICATION, _lane(event), start_ns, end_ns)
        said = arguments(event)
        op, _, _ = collective_of(name.partition(":")[2])
        count = _elements(said.get("Input Dims"))
        types = said.get("Input type")
        size = _size(count, _text(types[0]) if isinstance(types, list) and types else None)
        _collective(found, start_ns, end_ns, op=op, size_bytes=size, on_gpu=False)


def _cut_at(found: RankTrace, ends_ns: list[int]) -> None:
    """Add the steps between the ends of consecutive optimizer steps."""
    found.steps_by = "optimizer"
    for number, (start_ns, end_ns) in enumerate(pairwise(ends_ns)):
        found.intervals.add(Busy.STEP, number, start_ns, end_ns)


def _collective(found: RankTrace, start_ns: int, end_ns: int, **said: Any) -> None:
    if len(found.collectives) < _MOST_COLLECTIVES:
        found.collectives.append({"start_ns": start_ns, "end_ns": end_ns, **said})


@cache
def _knowledge() -> dict[str, Any]:
    known: dict[str, Any] = shipped("kernels.yaml")
    return known


@cache
def _expression(which: str) -> re.Pattern[str]:
    return re.compile(_knowledge()[which])


@cache
def _classes() -> list[tuple[str, re.Pattern[str]]]:
    return [(each["class"], re.compile(each["names"])) for each in _knowledge()["classes"]]


_known: dict[tuple[str, str], bool] = {}


def _is(name: str, which: str) -> bool:
    """Whether a name is of this kind; cached, because names repeat by the million."""
    key = (which, name[:_MOST_NAME])
    if key not in _known:
        if len(_known) > _MOST_NAMES:
            _known.clear()
        _known[key] = _expression(which).search(key[1]) is not None
    return _known[key]


def kernel_class(name: str) -> str:
    """Return what a kernel does, judged by its name: a `class` of knowledge/kernels.yaml, or `other`."""
    return next((what for what, names in _classes() if names.search(name)), "other")


@cache
def _collectives() -> dict[str, tuple[str, str, str]]:
    return {
        name: (each["op"], each["bytes"], each["bus"]) for each in _knowledge()["collectives"] for name in each["names"]
    }


def collective_of(name: str) -> tuple[str, str, str]:
    """Return, for an operation's name in c10d, Gloo or NCCL: torch's name, `in` or `out` for its size, its `bus`
    factor."""
    return _collectives().get(name, (name[:60] or "unknown", "in", "equal"))


def bus_factor(op: str, ranks: int) -> float:
    """Return bus bandwidth / algorithm bandwidth of an operation over `ranks` ranks (nccl-tests,
    doc/PERFORMANCE.md)."""
    _, _, bus = collective_of(op)
    return {"twice": 2 * (ranks - 1) / ranks, "once": (ranks - 1) / ranks}.get(bus, 1.0)


def _lane(event: TraceEvent) -> int:
    return event.tid if isinstance(event.tid, int) and abs(event.tid) < _MOST_NS else 0


def _size(count: int | None, dtype: str | None) -> int | None:
    each = _knowledge()["type_bytes"].get(dtype)
    return count * each if count is not None and each and count * each < _MOST_NS else None


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
            if (size := _whole(dim)) is None:
                return None
            count *= size
        total += count
    return total or None


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and value.isdigit() and len(value) < 19:
        value = int(value)
    return value if type(value) is int and 0 <= value < _MOST_NS else None


def _text(value: Any) -> str | None:
    return value[:200] if isinstance(value, str) and value else None
