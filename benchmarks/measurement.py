"""A measured value beside its target."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.process_tree import as_users_run_it

DDX = str(Path(sys.executable).with_name("ddx"))


@dataclass(frozen=True)
class Measurement:
    """One line of the table: `value` meets its target if it is below `limit`, both in `unit`."""

    what: str
    value: float
    limit: float
    unit: str
    how: str
    """What was measured how often, so that somebody else can repeat it."""

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.value < self.limit


def median_wall_s(argv: Sequence[str], times: int, exit_codes: Sequence[int] = (0,)) -> float:
    """Median wall time of a command, in seconds, after one run that warms the caches.

    Raises RuntimeError, with what the command printed, if it ends with another exit code.
    """
    walls_s = []
    for _ in range(times + 1):
        started_s = time.perf_counter()
        done = subprocess.run(argv, env=as_users_run_it(), capture_output=True, text=True, check=False)
        walls_s.append(time.perf_counter() - started_s)
        if done.returncode not in exit_codes:
            raise RuntimeError(f"{argv} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return statistics.median(walls_s[1:])
