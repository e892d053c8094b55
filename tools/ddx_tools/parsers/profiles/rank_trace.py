"""One rank's profiler trace, whatever program wrote it: busy intervals, steps and collectives; and what names mean.

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
from typing import Any

from ddx_tools.knowledge.load import shipped

MOST_NS = 1 << 62
"""Later times are no times."""
MOST_NAME = 300
"""The maximum number of letters of a name."""
_MOST_NAMES = 100_000
"""The maximum number of distinct kernel names."""
_MOST_COLLECTIVES = 500_000


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
    """What marks its steps: `profiler`, `range` (numbered NVTX ranges), or `optimizer` if there are neither."""
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
    pid: int | None = None
    """The process, if the file does not hold it alone."""

    @property
    def rank(self) -> int | None:
        """The rank, from the trace itself."""
        return whole(self._distributed.get("rank"))

    @property
    def world_size(self) -> int | None:
        """The number of ranks in the job, from the trace itself."""
        return whole(self._distributed.get("world_size"))

    @property
    def host(self) -> str | None:
        """The host name, from the trace itself."""
        name = self.about.get("host_name")
        return name[:256] if isinstance(name, str) else None

    def add_kernel(self, name: str, lane: int, start_ns: int, end_ns: int) -> bool:
        """Add a kernel's run; return whether it communicates."""
        self.device = "gpu"
        name = name[:MOST_NAME]
        known = self.kernels.get(name)
        if known is None:
            known = [kernel_class(name), 0, 0]
            if len(self.kernels) < _MOST_NAMES:
                self.kernels[name] = known
        known[1] += 1
        known[2] += end_ns - start_ns
        communicates: bool = known[0] == "communication"
        self.intervals.add(Busy.COMMUNICATION if communicates else Busy.COMPUTE, lane, start_ns, end_ns)
        return communicates

    def add_collective(self, start_ns: int, end_ns: int, **columns: Any) -> None:
        """Add a collective, with further columns of `trace_collectives` and `on_gpu`."""
        if len(self.collectives) < _MOST_COLLECTIVES:
            self.collectives.append({"start_ns": start_ns, "end_ns": end_ns, **columns})

    def add_update(self, name: str, end_ns: int) -> None:
        """Add the end of an optimizer step."""
        self.updates.setdefault(name[:MOST_NAME], []).append(end_ns)

    def cut_at_updates(self) -> None:
        """Derive training steps from the recorded ends of optimizer steps, if the trace marks no steps itself.

        Each added step lasts from the end of one optimizer step to the end of the next.
        """
        if not self.updates or Busy.STEP in self.intervals.what:
            return
        self.steps_by = "optimizer"
        most, _ = max(self.updates.items(), key=lambda each: len(each[1]))
        ends_ns = sorted(self.updates[most])
        for number, (start_ns, end_ns) in enumerate(pairwise(ends_ns)):
            self.intervals.add(Busy.STEP, number, start_ns, end_ns)

    @property
    def _distributed(self) -> dict[str, Any]:
        said = self.about.get("distributedInfo")
        return said if isinstance(said, dict) else {}


@cache
def _knowledge() -> dict[str, Any]:
    known: dict[str, Any] = shipped("kernels.yaml")
    return known


@cache
def expression(which: str) -> re.Pattern[str]:
    """Return the expression of knowledge/kernels.yaml with this key."""
    return re.compile(_knowledge()[which])


@cache
def _classes() -> list[tuple[str, re.Pattern[str]]]:
    return [(each["class"], re.compile(each["names"])) for each in _knowledge()["classes"]]


_known: dict[tuple[str, str], bool] = {}


def is_named(name: str, which: str) -> bool:
    """Whether a name in a trace matches the regular expression `which` of knowledge/kernels.yaml.

    Results are cached, because names repeat by the million.
    """
    key = (which, name[:MOST_NAME])
    if key not in _known:
        if len(_known) > _MOST_NAMES:
            _known.clear()
        _known[key] = expression(which).search(key[1]) is not None
    return _known[key]


def kernel_class(name: str) -> str:
    """Return what a kernel does, judged by its name: a `class` of knowledge/kernels.yaml, or `other`."""
    return next((what for what, names in _classes() if names.search(name)), "other")


def operation_of(name: str) -> str:
    """Return the operation in the name of NCCL's kernel: `AllReduce` of `ncclDevKernel_AllReduce_Sum_f32_RING_LL`."""
    return next(iter(re.findall(r"Kernel_([A-Za-z]+)", name)), "")


@cache
def _collectives() -> dict[str, tuple[str, str, str]]:
    return {
        name: (each["op"], each["bytes"], each["bus"]) for each in _knowledge()["collectives"] for name in each["names"]
    }


def collective_of(name: str) -> tuple[str, str, str]:
    """Return (torch's name, size tensor, bus factor) of an operation that c10d, Gloo or NCCL names.

    The size tensor is `in`, `out` or `none`: the tensor whose bytes count as the operation's size. The bus factor is a
    word that `bus_factor` turns into a number. For an unknown name: the name itself, `in`, `equal`.
    """
    return _collectives().get(name, (name[:60] or "unknown", "in", "equal"))


def bus_factor(op: str, ranks: int) -> float:
    """Return bus bandwidth / algorithm bandwidth of an operation over `ranks` ranks (nccl-tests,
    doc/PERFORMANCE.md)."""
    _, _, bus = collective_of(op)
    return {"twice": 2 * (ranks - 1) / ranks, "once": (ranks - 1) / ranks}.get(bus, 1.0)


def size_of(count: int | None, dtype: str | None) -> int | None:
    """Return the bytes of `count` elements of a type; None if either is unknown."""
    each = _knowledge()["type_bytes"].get(dtype)
    return count * each if count is not None and each and count * each < MOST_NS else None


def whole(value: Any) -> int | None:
    """Return a number of a trace, if it is whole and not absurd."""
    if isinstance(value, str) and value.isdigit() and len(value) < 19:
        value = int(value)
    return value if type(value) is int and 0 <= value < MOST_NS else None


def text_of(value: Any) -> str | None:
    """Return a text of a trace, bounded; None if it is empty or none."""
    return value[:200] if isinstance(value, str) and value else None
