"""Job logs: one interleaved log, a set of gigabytes, one of equal lines, and one larger than memory should ever be.

The logs are generated (constructed): eight ranks that print a step each, loggers, warnings, NCCL's lines and progress
bars, mixed as torchrun mixes them, and a recorded failure at the end.
"""

from __future__ import annotations

import io
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from benchmarks.measurement import DDX, Measurement
from benchmarks.process_tree import cost_of
from ddx_tools.investigation.run import investigate
from ddx_tools.parsers.logs.log_lines import FileIdentity
from ddx_tools.probes.host.text_rows import fact_rows
from ddx_tools.probes.job_log.scan import scan_log
from ddx_tools.redaction import text
from ddx_tools.redaction.shapes import Span

_MIB = 1 << 20
_PIECE_BYTES = 8 * _MIB
_TURNS = 5
_FAILURE = Path(__file__).parents[1] / "tests" / "fixtures" / "logs" / "torchrun_raise.log"


def measure() -> Iterator[Measurement]:
    """All measurements."""
    piece = noise(_PIECE_BYTES)
    yield from _redacting(piece)
    yield _reading(piece)
    yield _alike()
    yield _node_logs()
    with logs({"train.log": 64}, piece) as directory:
        one = cost_of([DDX, "job-log", str(directory / "train.log"), "--json"], (0, 1, 3))
    yield Measurement("a log of 64 MiB: ddx job-log", one.wall_s, 64 / 100 + 2, "s", "wall: start, secrets, rules")
    with logs({f"rank{rank}.log": 256 for rank in range(8)}, piece) as directory:
        many = cost_of([DDX, "job-log", str(directory), "--json"], (0, 1, 3))
    how = f"wall, all of it; {many.cpu_s:.1f} s of CPU"
    yield Measurement("2 GiB in 8 logs: ddx job-log", many.wall_s, 2048 / 100 + 2, "s", how)
    few, all_of_it = (cost_of([sys.executable, "-m", "benchmarks.job_logs", str(mib)]) for mib in (256, 5 << 10))
    growth = (all_of_it.peak_bytes - few.peak_bytes) / _MIB
    how = f"peak of 5 GiB less that of 256 MiB ({few.peak_bytes / _MIB:,.0f} MiB)"
    yield Measurement("5 GiB in one log: memory grows by", growth, 64.0, "MiB", how)


def _reading(piece: bytes) -> Measurement:
    """Speed of the reader alone, as what is below a limit: seconds for a hundred megabytes."""
    scan_log(io.BytesIO(piece), "train.log", FileIdentity(), None)  # loads what is known of messages
    cpu_s = _cpu_s(Repeated(piece, 256 * _MIB))
    speed = 256 * _MIB / 1e6 / cpu_s
    return Measurement("an interleaved log, for each 100 MB", 100 / speed, 1.0, "s", f"CPU; {speed:.0f} MB/s")


def _redacting(piece: bytes) -> Iterator[Measurement]:
    """What redaction adds to reading a log, and to reading and keeping it: the time inside it, of the quickest turn."""
    with logs({"train.log": 64}, piece) as directory:
        # Of what is kept each byte is searched, of what is only read the lines that matter.
        for what, keeps, limit in (("read", False, 10.0), ("read and kept", True, 15.0)):
            whole_s, inside_s = min(_judged_s(directory, keeps=keeps) for _ in range(_TURNS))
            added = 100 * inside_s / (whole_s - inside_s)
            how = f"CPU, quickest of {_TURNS}; {inside_s:.2f} s of {whole_s:.2f} s for 64 MiB"
            yield Measurement(f"redaction of a log that is {what}", added, limit, "%", how)


def _judged_s(directory: Path, *, keeps: bool) -> tuple[float, float]:
    """CPU seconds of a judgement, and how many of them redaction takes."""
    inside_s = 0.0
    search = text.secrets_in

    def timed(block: bytes) -> list[Span]:
        nonlocal inside_s
        began_s = time.thread_time()
        found = search(block)
        inside_s += time.thread_time() - began_s
        return found

    with mock.patch.object(text, "secrets_in", timed), TemporaryDirectory(prefix="ddx-bench-") as kept:
        started_s = time.process_time()
        investigate([str(directory / "train.log")], Path(kept) / "bundle" if keeps else None).diagnose()
        return time.process_time() - started_s, inside_s


def _alike() -> Measurement:
    """A log that says one thing without end, as a few megabytes in gzip can."""
    cpu_s = _cpu_s(Repeated(b"KeyError: 1\n" * 10_000, 1 << 30))
    return Measurement("1 GiB of equal lines that name an error", cpu_s, 40.0, "s", "CPU; 89 million lines")


def _node_logs() -> Measurement:
    """What the reader of machines' texts takes for node logs of which every other line is the kernel's."""
    lines = (
        f"Nov 21 04:{at // 60 % 60:02d}:{at % 60:02d} gpu-7 {who} veth{at:x} entered blocking state\n"
        for at, who in enumerate(("kernel: docker0:", "containerd[81]:") * 50_000)
    )
    log = "".join(lines).encode() + b"Nov 21 05:00:00 gpu-7 kernel: ice 0000:5e:00.0 ens1: NIC Link is Down\n"
    fact_rows(log, "node.log", "node.log")
    started_s = time.process_time()
    for _ in range(_TURNS):
        fact_rows(log, "node.log", "node.log")
    speed = _TURNS * len(log) / 1e6 / (time.process_time() - started_s)
    return Measurement("node logs, for each 100 MB", 100 / speed, 2.0, "s", f"CPU; {speed:.0f} MB/s")


def _cpu_s(log: Repeated) -> float:
    started_s = time.process_time()
    scan_log(log, "train.log", FileIdentity(), None)
    return time.process_time() - started_s


class Repeated:
    """A file that holds a piece again and again, and lies nowhere."""

    def __init__(self, piece: bytes, size: int) -> None:
        self._piece = piece
        self._left = size
        self._at = 0

    def read(self, count: int, /) -> bytes:
        """The next bytes."""
        count = min(count, self._left)
        start, self._at = self._at, (self._at + count) % len(self._piece)
        self._left -= count
        return (self._piece * (2 + count // len(self._piece)))[start : start + count]


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


if __name__ == "__main__":
    scan_log(Repeated(noise(_PIECE_BYTES), int(sys.argv[1]) * _MIB), "train.log", FileIdentity(), None)
