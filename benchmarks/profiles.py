"""A profiler's trace of 1 GB and a memory snapshot of 100 MB, constructed: ddx from its start to its answer."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measurement import DDX, Measurement
from benchmarks.process_tree import cost_of
from ddx_evals.simulator.formats.cuda_snapshot import SnapshotShape, snapshot
from ddx_evals.simulator.formats.kineto import TraceShape, trace

_TRACE = TraceShape(steps=800, layers=32, kernels=16)
_LESS = 100
"""Steps of the trace that `json.load` is given: it takes four times the file's size of memory."""
_SNAPSHOT = SnapshotShape(layers=90, steps=480, kept_mib=1, frames=60)
_LOAD = "import json, sys; json.load(open(sys.argv[1]))"


def measure() -> Iterator[Measurement]:
    """All measurements."""
    with TemporaryDirectory(prefix="ddx-bench-") as directory:
        large, small = Path(directory, "rank0.json"), Path(directory, "small.json")
        write_trace(large, _TRACE.steps)
        write_trace(small, _LESS)
        size_mb = large.stat().st_size / 1e6
        cost = cost_of([DDX, "profile", str(large), "--json"])
        how = f"ddx profile of {size_mb:,.0f} MB, {size_mb / cost.wall_s:,.0f} MB/s"
        yield Measurement("profiler trace of 1 GB", cost.wall_s, 60.0, "s", how)
        yield Measurement("the same, memory", cost.peak_bytes / 2**30, 2.0, "GiB", "peak of all processes")
        loaded = cost_of([sys.executable, "-c", _LOAD, str(small)])
        ratio = (loaded.wall_s / small.stat().st_size) / (cost.wall_s / large.stat().st_size)
        how = f"json.load of {small.stat().st_size / 1e6:,.0f} MB alone: {loaded.wall_s:.1f} s, by byte"
        yield Measurement("json.load against ddx profile", ratio, math.inf, "x", how)
    with TemporaryDirectory(prefix="ddx-bench-") as directory:
        file = Path(directory, "mem_rank0.pickle")
        file.write_bytes(snapshot(_SNAPSHOT))
        cost = cost_of([DDX, "memory", str(file), "--json"])
        how = f"ddx memory of {file.stat().st_size / 1e6:,.0f} MB, {cost.peak_bytes / 2**20:,.0f} MiB at most"
        yield Measurement("memory snapshot of 100 MB", cost.wall_s, 20.0, "s", how)


def write_trace(file: Path, steps: int) -> None:
    """A trace of so many steps."""
    with file.open("wb") as out:
        out.writelines(trace(TraceShape(steps=steps, layers=_TRACE.layers, kernels=_TRACE.kernels), 0))
