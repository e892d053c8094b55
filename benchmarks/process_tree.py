"""What a command costs with all processes that it starts: wall time, CPU time, memory."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

_POLL_S = 0.02


@dataclass(frozen=True)
class Cost:
    """The cost of one run."""

    wall_s: float
    cpu_s: float
    """User and system time of the process and of all that it waited for."""
    peak_bytes: int
    """The largest sum of the resident memory of all its processes; what they share counts for each of them."""


def as_users_run_it() -> dict[str, str]:
    """The environment of a command: with compiled modules, whatever the one that measures does without."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def cost_of(argv: Sequence[str], exit_codes: Sequence[int] = (0,)) -> Cost:
    """Run a command. Raises RuntimeError, with the end of what it printed, if it ends with another exit code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = 0
    with tempfile.TemporaryFile() as output:
        started_s = time.perf_counter()
        process = subprocess.Popen(argv, env=as_users_run_it(), stdout=output, stderr=subprocess.STDOUT)
        while process.poll() is None:
            peak = max(peak, _resident_bytes(process.pid))
            time.sleep(_POLL_S)
        wall_s = time.perf_counter() - started_s
        if process.returncode not in exit_codes:
            output.seek(0)
            printed = output.read()[-2000:].decode("utf-8", "replace")
            raise RuntimeError(f"{list(argv)} ended with {process.returncode}\n{printed}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall_s, cpu_s, peak)


def middle(costs: Sequence[Cost]) -> Cost:
    """The cost of the run that took the median time."""
    return sorted(costs, key=lambda cost: cost.wall_s)[len(costs) // 2]


def _resident_bytes(pid: int) -> int:
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    total = 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total
