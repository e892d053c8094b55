"""Processes that look like the ranks of a job and wait: small, so that what is measured is ddx."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

_PROGRAMS = Path(__file__).parent / "programs"
WAITING, PAUSING = _PROGRAMS / "waiting_rank.py", _PROGRAMS / "pausing_rank.py"


@contextmanager
def waiting_ranks(world_size: int, program: Path = WAITING) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start ranks that go on until their standard input ends, and yield their processes by rank."""
    job = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "localhost", "MASTER_PORT": "29999"}
    with ExitStack() as started:
        ranks = []
        for rank in range(world_size):
            environment = {**os.environ, **job, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            argv = [sys.executable, str(program)]
            pipe = subprocess.PIPE
            process = subprocess.Popen(argv, env=environment, stdin=pipe, stdout=pipe)
            ranks.append(started.enter_context(process))
            started.callback(process.kill)
        for process in ranks:
            assert process.stdout is not None
            process.stdout.readline()
        yield ranks
