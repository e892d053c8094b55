"""Logs of NCCL: ddx against one regular expression a line, and against `grep -E` with the same groups.

The logs are constructed in the shape of NCCL 2.27: eight processes that enqueue three collectives a step, and one of
them stops early. ddx reads them from its start to its answer.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measurement import DDX, Measurement
from benchmarks.process_tree import Cost, cost_of

RANKS = 8
_MIB = 1 << 20
_SMALL_MIB, _LARGE_MIB, _HUGE_MIB = 32, 240, 2048
_GROUPS = (
    r"([^ ]+):([0-9]+):([0-9]+) \[([0-9]+)\] NCCL INFO ([A-Za-z]+): opCount ([0-9a-f]+) sendbuff ([^ ]+) "
    r"recvbuff ([^ ]+) count ([0-9]+) datatype ([0-9]+) op ([0-9]+) root ([0-9]+) "
    r"comm ([^ ]+) \[nranks=([0-9]+)\] stream ([^ ]+)"
)
_STEP = (("AllGather", 1048576, 9), ("AllReduce", 25557032, 7), ("ReduceScatter", 524288, 9))


def measure() -> Iterator[Measurement]:
    """All measurements."""
    with TemporaryDirectory(prefix="ddx-bench-") as directory:
        small, large = Path(directory, "small"), Path(directory, "large")
        write_logs(small, _SMALL_MIB)
        few = ddx(small)
        write_logs(large, _LARGE_MIB)
        megabytes = sum(file.stat().st_size for file in large.iterdir()) / 1e6
        # Both pay for their start; between them lie the lines.
        more = ddx(large)
        added = megabytes - sum(file.stat().st_size for file in small.iterdir()) / 1e6
        speed = added / (more.cpu_s - few.cpu_s)
        one = next(iter(sorted(large.iterdir())))
        by_line, by_grep = _by_line_mb_per_s(one), _by_grep_mb_per_s(one)
        yield _slowness("NCCL log, lines of collectives (CPU)", speed, 250.0)
        yield _slowness("the same, one regex a line, one process", by_line)
        yield _slowness("the same, grep -E, one process", by_grep)
        yield Measurement("NCCL log: time against one regex a line", by_line / speed, math.inf, "x", "wall, per byte")
        yield Measurement("NCCL log: time against grep -E", by_grep / speed, math.inf, "x", "wall, per byte")
        growth = (more.peak_bytes - few.peak_bytes) / _MIB
        how = f"peak of {_LARGE_MIB} MiB of logs less that of {_SMALL_MIB} MiB ({few.peak_bytes / _MIB:,.0f} MiB)"
        yield Measurement("NCCL log: memory grows by", growth, 64.0, "MiB", how)
    with TemporaryDirectory(prefix="ddx-bench-") as directory:
        write_logs(Path(directory), _HUGE_MIB)
        huge = ddx(Path(directory))
        how = f"wall; {huge.cpu_s:.1f} s of CPU, {huge.peak_bytes / _MIB:,.0f} MiB at most"
        yield Measurement(f"NCCL log: the rank behind, from {_HUGE_MIB:,} MiB", huge.wall_s, 10.0, "s", how)


def ddx(directory: Path) -> Cost:
    """The cost of one `ddx nccl-log`; it names the rank that is behind."""
    return cost_of([DDX, "nccl-log", str(directory), "--json"], (0, 1))


def _slowness(what: str, mb_per_s: float, wanted: float = math.inf) -> Measurement:
    """Speed as time, so that less is better, as everywhere else."""
    limit = 1000.0 / wanted if math.isfinite(wanted) else math.inf
    return Measurement(what, 1000.0 / mb_per_s, limit, "ms/MB", f"{mb_per_s:,.0f} MB/s")


def _by_line_mb_per_s(file: Path) -> float:
    pattern = re.compile(_GROUPS)
    started_s = time.perf_counter()
    with file.open(encoding="ascii") as lines:
        matched = sum(1 for line in lines if pattern.match(line))
    assert matched
    return file.stat().st_size / 1e6 / (time.perf_counter() - started_s)


def _by_grep_mb_per_s(file: Path) -> float:
    started_s = time.perf_counter()
    environment = {**os.environ, "LC_ALL": "C"}
    subprocess.run(["grep", "-cE", _GROUPS, str(file)], check=True, capture_output=True, env=environment)
    return file.stat().st_size / 1e6 / (time.perf_counter() - started_s)


def write_logs(directory: Path, mebibytes: int) -> None:
    """One file for each process, as NCCL_DEBUG_FILE=nccl.%h.%p.log makes them; of so many MiB together."""
    directory.mkdir(parents=True, exist_ok=True)
    for rank in range(RANKS):
        least = mebibytes * _MIB // RANKS - (_MIB // 2 if rank == 3 else 0)
        with Path(directory, f"nccl.node-00.{4000 + rank}.log").open("w", encoding="ascii") as log:
            log.write(_head(rank))
            for first in itertools.count(0, 4096):
                if log.tell() >= least:
                    break
                log.writelines(_operation(rank, number) for number in range(first, first + 4096))


def _head(rank: int) -> str:
    prefix = f"node-00:{4000 + rank}:{4000 + rank} [{rank}] NCCL INFO"
    comm = f"comm {_pointer(rank)} rank {rank} nranks {RANKS} cudaDev {rank} nvmlDev {rank} busId {0x1B + rank:x}000"
    init = f"{prefix} ncclCommInitRankConfig {comm} commId 0xa1b2c3 - Init"
    return f"{init} START\n{init} COMPLETE\n"


def _operation(rank: int, number: int) -> str:
    name, count, datatype = _STEP[number % len(_STEP)]
    address = (number * 7919 * 512) & 0xFFFFFFFF
    return (
        f"node-00:{4000 + rank}:{4000 + rank} [{rank}] NCCL INFO {name}: opCount {number:x} "
        f"sendbuff 0x7f3a{address:08x} recvbuff 0x7f3b{address:08x} count {count} datatype {datatype} op 0 root 0 "
        f"comm {_pointer(rank)} [nranks={RANKS}] stream 0x55a4c0{rank:02x}1e2d0\n"
    )


def _pointer(rank: int) -> str:
    return f"0x55a4c1{rank:02x}a3b2c0"


if __name__ == "__main__":
    for one in measure():
        print(f"{one.what}: {one.value:.3g} {one.unit} ({one.how})", file=sys.stderr)
