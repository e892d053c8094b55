"""Flight records of large jobs: ddx against `torchfrtrace` and against bare unpickling.

The dumps are generated (constructed, not recorded): a dp x tp x pp job of NCCL, 20 frames an entry, written as torch
writes them, one rank stalled. `torchfrtrace` takes the transfers between pipeline stages for mismatches and gives up
after eleven, so the comparison is made on a dp x tp job of the same size, which it reads to its end. Three programs
read the dumps, each from its start to its answer:

- `ddx flight-recorder DIR --json`, in as many processes as there are CPUs;
- `torchfrtrace DIR`, the analyzer that PyTorch ships (one process);
- the floor: processes, as many as there are CPUs, that do nothing but `pickle.load` each dump and keep it, as whoever
  compares ranks by such objects must; and the same without keeping anything.

The first and the last are repeated on the same dumps as Python's own pickler writes them, and on ones like Gloo's.
"""

from __future__ import annotations

import math
import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measurement import DDX, Measurement
from benchmarks.process_tree import Cost, cost_of, middle
from ddx_evals.simulator import torch_pickle, write_benchmark
from ddx_evals.simulator.formats.torch_pickle import PickledFrame

RANKS, ENTRIES = 256, 2000
LARGE = ((1024, 2000, 30.0), (4096, 500, 30.0), (10_000, 200, 60.0))
SERIES = (128, 256, 512, 1024)
_FLOOR = Path(__file__).with_name("unpickle_all.py")


def measure() -> Iterator[Measurement]:
    """All measurements, the small job first."""
    processes = len(os.sched_getaffinity(0))
    with dumps(RANKS, ENTRIES) as directory:
        pipelined, gives_up = ddx(directory), torchfrtrace(directory)
    with dumps(RANKS, ENTRIES, stages=1) as directory:
        ours, incumbent = ddx(directory), torchfrtrace(directory)
        why = ddx(directory, "why")
        kept, dropped = unpickled(directory, "keep"), unpickled(directory, "drop")
        others = list(_written_otherwise(directory))
    size = f"{RANKS} ranks x {ENTRIES:,} entries"
    yield _row(f"{size}, pipelines: ddx flight-recorder", pipelined, 60.0)
    yield _row(f"{size}, pipelines: torchfrtrace, which gives up", gives_up, math.inf)
    yield _row(f"{size}: ddx flight-recorder", ours, 60.0)
    yield Measurement(f"{size}: ddx why against that", why.wall_s / ours.wall_s, 1.3, "x", "wall time")
    yield _row(f"{size}: torchfrtrace", incumbent, math.inf)
    yield _row(f"{size}: unpickled and kept, {processes} processes", kept, math.inf)
    yield _row(f"{size}: unpickled and dropped, {processes} processes", dropped, math.inf)
    yield Measurement("time against torchfrtrace", ours.wall_s / incumbent.wall_s * 100, 4.0, "%", "wall time")
    share = ours.peak_bytes / incumbent.peak_bytes * 100
    yield Measurement("memory against torchfrtrace", share, 25.0, "%", "peak of the resident sum of all processes")
    yield Measurement("time against unpickling, kept", ours.wall_s / kept.wall_s, 2.0, "x", "wall time")
    yield Measurement("time against unpickling, dropped", ours.wall_s / dropped.wall_s, 2.0, "x", "wall time")
    yield from others
    for ranks, entries, limit_s in LARGE:
        with dumps(ranks, entries) as directory:
            large = ddx(directory)
        what = f"{ranks:,} ranks x {entries:,} entries"
        yield _row(what, large, limit_s)
        yield Measurement(f"{what}: memory", large.peak_bytes / (1 << 20), 1024.0, "MiB", "peak, all processes")
    yield Measurement("time grows with entries to the power of", exponent(), 1.15, "", f"ranks {SERIES} x {ENTRIES:,}")


_FRTRACE = "torch.distributed.flight_recorder.fr_trace"


def _row(what: str, cost: Cost, limit_s: float) -> Measurement:
    how = f"wall; {cost.cpu_s:.1f} s of CPU, {cost.peak_bytes / (1 << 20):,.0f} MiB at most"
    return Measurement(what, cost.wall_s, limit_s, "s", how)


def _written_otherwise(directory: Path) -> Iterator[Measurement]:
    """The same dumps in other bytes, rewritten in place. Python's pickler refers to each object that is shared."""
    for protocol in (2, 4, 5):
        for path in directory.iterdir():
            path.write_bytes(pickle.dumps(pickle.loads(path.read_bytes()), protocol))
        yield _against_unpickling(directory, f"written by Python, protocol {protocol}")
    for path in directory.iterdir():
        path.write_bytes(torch_pickle.encode(_as_gloo(pickle.loads(path.read_bytes()))))
    yield _against_unpickling(directory, "like Gloo's, written by torch")


def _against_unpickling(directory: Path, how: str) -> Measurement:
    ours, kept = ddx(directory), unpickled(directory, "keep")
    seconds = f"{ours.wall_s:.1f} s against {kept.wall_s:.1f} s, wall"
    return Measurement(f"{how}: time against unpickling, kept", ours.wall_s / kept.wall_s, 2.0, "x", seconds)


def _as_gloo(dump: dict[str, Any]) -> dict[str, Any]:
    """What Gloo's recorder says of the same calls: it knows no device, and its state stays `scheduled`."""
    known: dict[int, PickledFrame] = {}
    for entry in dump["entries"]:
        entry["frames"] = [known.setdefault(id(frame), PickledFrame(frame)) for frame in entry["frames"]]
        entry["profiling_name"] = entry["profiling_name"].replace("nccl:", "gloo:")
        entry["retired"] = entry["state"] == "completed"
        entry |= {"state": "scheduled", "time_discovered_started_ns": None, "time_discovered_completed_ns": None}
    return dump


def unpickled(directory: Path, keep_or_drop: str) -> Cost:
    """The cost of unpickling alone."""
    processes = len(os.sched_getaffinity(0))
    return cost_of([sys.executable, str(_FLOOR), str(directory), str(processes), keep_or_drop])


def ddx(directory: Path, command: str = "flight-recorder") -> Cost:
    """The cost of one command, the middle one of three; it names the stalled rank, or who may be."""
    return middle([cost_of([DDX, command, str(directory), "--json"], (0, 1, 3)) for _ in range(3)])


def torchfrtrace(directory: Path) -> Cost:
    """The cost of the analyzer that PyTorch ships."""
    return cost_of([sys.executable, "-m", _FRTRACE, str(directory), "-p", "nccl_trace_rank_"], (0, 1))


def exponent() -> float:
    """The slope of log(time) over log(entries), fitted by least squares."""
    points = []
    for ranks in SERIES:
        with dumps(ranks, ENTRIES) as directory:
            points.append((math.log(ranks * ENTRIES), math.log(ddx(directory).wall_s)))
    return slope(points)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the line through points that leaves the least squares."""
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / sum((x - x_mean) ** 2 for x, _ in points)


@contextmanager
def dumps(ranks: int, entries: int, stages: int = 4) -> Iterator[Path]:
    """A directory of generated dumps, gone afterwards; `stages`: of a pipeline, at most."""
    with TemporaryDirectory(prefix="ddx-bench-") as directory:
        write_benchmark(Path(directory), ranks, entries, len(os.sched_getaffinity(0)), stages)
        yield Path(directory)
