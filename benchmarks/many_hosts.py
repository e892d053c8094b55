"""Many hosts at a time: what one answer costs the machine that asks, and what it costs a host to give it.

The answers come from local programs, through the same workers as ssh or srun: each prints what `ddx node` of a host
would print, made ready before. A real job of nine ranks (tests/fixtures/many_hosts) is dealt out to hosts of eight
ranks each: on one of them a rank reads a batch and never ends, on all others all wait. So what is measured is the
machine that asks, which starts 1,250 programs, reads what they print and judges. A network is not in it, nor is ssh,
and no host takes the 6 s of looking. What `ddx node` costs its host is measured beside it, on programs that wait like
ranks.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.measurement import DDX, Measurement
from benchmarks.process_tree import as_users_run_it
from benchmarks.waiting_ranks import waiting_ranks
from ddx_evals.large.split_hosts import answer_of
from ddx_tools.investigation.many_hosts.host_results import Made, decoded, renamed
from ddx_tools.investigation.many_hosts.wire import Inbox, note, parcel
from ddx_tools.sources.bundle import Bundle

HOSTS, RANKS = 1250, 8
_FEW = 125
_RECORDED = Path(__file__).parents[1] / "tests" / "fixtures" / "many_hosts" / "nine-ranks.tar.zst"
_CULPRIT = 7_777


def measure() -> Iterator[Measurement]:
    """A real host, then many that are played."""
    with TemporaryDirectory(prefix="ddx-bench-") as directory:
        scratch = Path(directory)
        yield from _of_a_node()
        few, many = (play(scratch, hosts) for hosts in (_FEW, HOSTS))
        size_bytes, lines = _size_of_answers(scratch)
    ranks = HOSTS * RANKS
    yield Measurement(f"{HOSTS:,} hosts, {ranks:,} ranks: ddx why --hosts", many["wall_s"], 60.0, "s", _how(many))
    yield Measurement("memory of the machine that asks", many["peak_mib"], 1024.0, "MiB", "ddx itself, at most")
    a_host = (many["cpu_s"] - few["cpu_s"]) / (HOSTS - _FEW)
    yield Measurement("CPU of a host more", 1000 * a_host, 48.0, "ms", f"between {_FEW} and {HOSTS:,} hosts")
    mib = (many["peak_mib"] - few["peak_mib"]) / (HOSTS - _FEW)
    yield Measurement("memory of a host more", 1024 * mib, 800.0, "KiB", f"between {_FEW} and {HOSTS:,} hosts")
    yield Measurement(
        "an answer of a host", size_bytes / 1024, 64.0, "KiB", f"{lines:.0f} lines, packed, {RANKS} ranks"
    )


def _of_a_node() -> Iterator[Measurement]:
    with waiting_ranks(RANKS):
        cost = _cost([DDX, "node"])
    how = f"{cost['wall_s']:.1f} s, most of them between two samples; {RANKS} ranks, without torch"
    yield Measurement("CPU of ddx node on a host", cost["cpu_s"], 8.0, "s", how)
    yield Measurement("memory of ddx node on a host", cost["peak_mib"], 300.0, "MiB", "at most")


def _how(cost: Mapping[str, float]) -> str:
    return f"wall; {cost['cpu_s']:.1f} s of CPU, the programs that play hosts included"


def play(scratch: Path, hosts: int) -> dict[str, float]:
    """The cost of asking so many hosts, of which one has the rank that all others wait for."""
    culprit = _CULPRIT * hosts // HOSTS
    at = culprit // RANKS
    with Bundle(_RECORDED) as whole:
        waiting = {number: number for number in range(RANKS)}
        for name, ranks in (("waiting", waiting), ("stuck", waiting | {culprit % RANKS: RANKS})):
            answer_of(whole, name, ranks, hosts * RANKS, scratch / name, raw=False)
    for number in range(hosts):
        name = "stuck" if number == at else "waiting"
        (scratch / f"node{number:04}").write_bytes(_dealt(scratch / name, name, number))
    (scratch / "run").write_text(f"exec cat {scratch}/$1\n")
    argv = [DDX, "why", "--hosts", f"node[0000-{hosts - 1:04}]", "--via", f"sh {scratch}/run %host", "--json"]
    cost = _cost(argv)
    said = json.loads(cost.pop("printed"))
    if said["culprits"]["ranks"] != [culprit] or said["culprits"]["hosts"] != [f"node{at:04}"]:
        raise RuntimeError(f"not rank {culprit} on node{at:04}: {said['headline']}")
    return cost


def _dealt(template: Path, name: str, number: int) -> bytes:
    """The answer of a host as another one gives it, with ranks of its own."""
    inbox = Inbox(template.with_suffix(".read"), 1 << 30)
    for line in template.read_bytes().splitlines():
        inbox.take(line)
    host = f"node{number:04}"
    printed = [note("hello", clock_s=time.time(), host=host)]
    for rows in inbox.rows:
        made = renamed(decoded(rows.read_bytes(), name), name, host)
        printed += parcel("rows", BytesIO(_ranks_from(made, RANKS * number).encoded(1 << 30)))
        rows.unlink()
    return b"".join([*printed, note("end", clock_s=time.time(), jobs=1)])


def _ranks_from(made: Made, first: int) -> Made:
    """With ranks that begin at `first`, in columns and in the facts about machines."""

    def shifted(table: pa.Table) -> pa.Table:
        for name in ("rank", "global_rank"):
            if name in table.column_names:
                column = pc.add(table[name], pa.scalar(first, pa.int32()))
                table = table.set_column(table.column_names.index(name), name, column)
        return table

    return replace(made, rows={name: shifted(table) for name, table in made.rows.items()})


def _size_of_answers(scratch: Path) -> tuple[float, float]:
    """Packed bytes and lines of a host's answer."""
    answers = [path.read_bytes() for path in scratch.glob("node*")]
    lines = [line for answer in answers for line in answer.splitlines()]
    packed = sum(len(line) for line in lines) * 3 / 4
    return packed / len(answers), len(lines) / len(answers)


def _cost(argv: list[str]) -> dict[str, Any]:
    """Wall and CPU time of a command with all that it starts, and the memory of the largest of its processes."""
    program = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE); "
        "used = resource.getrusage(resource.RUSAGE_CHILDREN); sys.stdout.buffer.write(done.stdout); "
        "print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, file=sys.stderr)"
    )
    started_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program, *argv], env=as_users_run_it(), capture_output=True, text=True, check=True
    )
    wall_s = time.perf_counter() - started_s
    cpu_s, peak_mib = map(float, done.stderr.split()[-2:])
    return {"wall_s": wall_s, "cpu_s": cpu_s, "peak_mib": peak_mib, "printed": done.stdout}
