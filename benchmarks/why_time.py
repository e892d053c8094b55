"""What `ddx why` of a live host of 8 ranks costs, and what each further source adds to it.

The sources are stand-ins of the tests on this machine: an NCCL RAS of 64 ranks, torch's debug server as recorded, and
pages of exporters. So a network is not in it. Of a host without ddx, what is measured is the archive that is sent there
and `ddx why` through a shell in place of ssh.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from benchmarks.measurement import DDX, Measurement
from benchmarks.process_tree import Cost, cost_of, middle
from benchmarks.waiting_ranks import waiting_ranks
from ddx_tools.sources.remote.archive import archive

_TESTS = Path(__file__).parents[1] / "tests"
_RANKS = 8
_TIMES = 3
_ANY_VERDICT = (0, 1, 3)
"""The verdict on ranks that only wait is not the question here."""


def measure() -> Iterator[Measurement]:
    """The live host alone, then each source."""
    sys.path.append(str(_TESTS / "tools"))
    with waiting_ranks(_RANKS) as ranks:
        alone = _middle([DDX, "why", str(ranks[0].pid), "--json"])
    yield _line(f"ddx why, live host of {_RANKS} ranks", alone, 6.0)
    yield from _ras(alone)
    yield from _debug_server()
    yield from _pages()
    yield from _without_ddx(alone)


def _ras(alone: Cost) -> Iterator[Measurement]:
    from ras_servers import four_stages, ras

    for what, report in (("equal counts", four_stages()), ("a rank behind", four_stages(lacks={("a2", 37): 1}))):
        with (
            ras(report.report) as address,
            patch.dict(os.environ, NCCL_RAS_ADDR=address),
            waiting_ranks(_RANKS) as ranks,
        ):
            cost = _middle([DDX, "why", str(ranks[0].pid), "--json"])
        how = f"more than without; 64 ranks, {what}; {cost.cpu_s - alone.cpu_s:+.2f} s of CPU"
        yield Measurement(f"NCCL RAS, {what}", cost.wall_s - alone.wall_s, math.inf, "s", how)


def _debug_server() -> Iterator[Measurement]:
    from debug_servers import debug_server

    cases: dict[str, dict[int, str]] = {"all answer": {}, "a silent rank": {3: "silent"}}
    for what, silent in cases.items():
        with debug_server("hung", ranks=silent) as address:
            yield _line(f"debug server by address, {what}", _middle([DDX, "why", "--debug-server", address]), 10.0)


def _pages() -> Iterator[Measurement]:
    pages = sorted((_TESTS / "fixtures" / "metrics").glob("*.prom"))
    yield _line(f"metrics pages, {len(pages)} files", _middle([DDX, "why", *map(str, pages), "--json"]), math.inf)


def _without_ddx(alone: Cost) -> Iterator[Measurement]:
    yield Measurement("archive for a host without ddx", len(archive()) / 2**20, 8.0, "MiB", "sent once to each host")
    with TemporaryDirectory(prefix="ddx-bench-") as directory, waiting_ranks(_RANKS):
        # `ddx` is not there: the shell in place of ssh runs the rest of the command line without it.
        shell = Path(directory, "run")
        shell.write_text('shift; case "$*" in *ddx*) echo "ddx: not found" >&2; exit 127;; esac; exec "$@"\n')
        cost = _middle([DDX, "why", "--hosts", "node1", "--via", f"sh {shell} %host", "--json"])
    how = f"more than the host by itself; {cost.cpu_s - alone.cpu_s:+.2f} s of CPU"
    yield Measurement("a host without ddx", cost.wall_s - alone.wall_s, math.inf, "s", how)


def _line(what: str, cost: Cost, limit_s: float) -> Measurement:
    how = f"wall, median of {_TIMES}; {cost.cpu_s:.2f} s of CPU, {cost.peak_bytes / 2**20:.0f} MiB at most"
    return Measurement(what, cost.wall_s, limit_s, "s", how)


def _middle(argv: Sequence[str]) -> Cost:
    """The median of some runs, after one that warms the caches."""
    costs = [cost_of(argv, _ANY_VERDICT) for _ in range(_TIMES + 1)][1:]
    return middle(costs)
