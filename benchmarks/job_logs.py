"""Job logs: one interleaved log, a set of gigabytes, and a file that is larger than memory should ever be.

The logs are generated (constructed): eight ranks that print a step each, loggers, warnings, NCCL's lines and progress
bars, mixed as torchrun mixes them, and a recorded failure at the end.
"""

from __future__ import annotations

import io
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measurement import DDX, Measurement
from benchmarks.process_tree import cost_of
from ddx_tools.formats.log_lines import FileIdentity
from ddx_tools.logs.scan import scan_log

_MIB = 1 << 20
_PIECE_BYTES = 8 * _MIB
_FAILURE = Path(__file__).parents[1] / "tests" / "fixtures" / "logs" / "torchrun_raise.log"


def measure() -> Iterator[Measurement]:
    """All measurements."""
    piece = noise(_PIECE_BYTES)
    yield _reading(piece)
    with logs({"train.log": 64}, piece) as directory:
        one = cost_of([DDX, "job-log", str(directory / "train.log"), "--json"], (0, 1, 3))
    yield Measurement("a log of 64 MiB: ddx job-log", one.wall_s, 64 / 50 + 3, "s", "wall: start, secrets, rules")
    with logs({f"rank{rank}.log": 256 for rank in range(8)}, piece) as directory:
        many = cost_of([DDX, "job-log", str(directory), "--json"], (0, 1, 3))
    yield Measurement("2 GiB in 8 logs: ddx job-log", many.wall_s, 10.0, "s", f"wall; {many.cpu_s:.1f} s of CPU")
    yield Measurement("2 GiB in 8 logs: memory", many.peak_bytes / _MIB, 1024.0, "MiB", "peak, all processes")
    with logs({"train.log": 1}, piece) as directory:
        with (directory / "train.log").open("r+b") as log:
            log.seek(5 << 30)
            log.write(b"\nKeyError: at the end\n")
        huge = cost_of([DDX, "job-log", str(directory / "train.log"), "--json"], (0, 1, 3))
    yield Measurement("5 GiB in one log: memory", huge.peak_bytes / _MIB, 1024.0, "MiB", "peak; sparse file")


def _reading(piece: bytes) -> Measurement:
    """Speed of the reader alone, as what is below a limit: seconds for a hundred megabytes."""
    data = piece * 16
    started_s = time.perf_counter()
    scan_log(io.BytesIO(data), "train.log", FileIdentity(), None)
    wall_s = time.perf_counter() - started_s
    how = f"{len(data) / 1e6 / wall_s:.0f} MB/s, two threads; 2 s are 50 MB/s"
    return Measurement("an interleaved log, for each 100 MB", wall_s / (len(data) / 1e8), 2.0, "s", how)


@contextmanager
def logs(sizes_mib: dict[str, int], piece: bytes) -> Iterator[Path]:
    """A directory of logs of these sizes, gone afterwards; each ends with a failure."""
    with TemporaryDirectory(prefix="ddx-bench-") as directory:
        for name, size in sizes_mib.items():
            with (Path(directory) / name).open("wb") as log:
                for number in range(max(1, size * _MIB // len(piece))):
                    log.write(b"piece %d\n" % number)
                    log.write(piece)
                log.write(_FAILURE.read_bytes())
        os.sync()
        yield Path(directory)


def noise(size: int) -> bytes:
    """What healthy ranks print."""
    chance = random.Random(1)
    out: list[str] = []
    length = step = 0
    while length < size:
        step += 1
        lines = [line for rank in range(8) for line in _lines(chance, step, rank)]
        chance.shuffle(lines)
        out += lines
        length += sum(map(len, lines))
    return "".join(out).encode()


def _lines(chance: random.Random, step: int, rank: int) -> Iterator[str]:
    stamp = f"2026-11-21 10:{step // 600 % 60:02d}:{step // 10 % 60:02d},{chance.randrange(1000):03d}"
    yield (
        f"[rank{rank}]:[titan] {stamp} - root - INFO - step: {step:3}  loss: {chance.random() * 10:8.4f}  memory: "
        f"{chance.random() * 80:5.2f}GiB({chance.random() * 100:.2f}%)  tps: {chance.randrange(9999):,}\n"
    )
    if chance.random() < 0.3:
        yield f"[default{rank}]:{stamp} INFO data.py:{step % 500} loaded shard {step} in {chance.random():.3f} s\n"
    if chance.random() < 0.1:
        yield f"[rank{rank}]:/usr/lib/python3/torch/utils/checkpoint.py:90: UserWarning: None of the inputs have grad\n"
    if chance.random() < 0.2:
        yield (
            f"node{rank}:1{rank}:2{rank} [{rank}] NCCL INFO AllReduce: opCount {step:x} sendbuff 0x7f{step:x} count "
            f"{chance.randrange(1 << 26)} datatype 9 op 0 root 0 comm 0x55 [nranks=8] stream 0x55\n"
        )
    if chance.random() < 0.1:
        bar = "#" * (step % 10)
        yield f"Training: {step % 100}%|{bar:10}| {step}/10000 [00:{step % 60:02d}<10:00, 1.2it/s]\r"
