"""How long a rank stands still while ddx looks at it, beside what py-spy alone does to it."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.measurement import DDX, Measurement
from benchmarks.waiting_ranks import PAUSING, waiting_ranks

_PYSPY = str(Path(sys.executable).with_name("py-spy"))
_TIMES = 5


def measure() -> Measurement:
    """Longest pause of a rank under `ddx stacks`, against its pause under `py-spy dump` alone (plus half)."""
    alone_ms = statistics.median(_longest_pause_ms("py-spy") for _ in range(_TIMES))
    ours_ms = statistics.median(_longest_pause_ms("ddx") for _ in range(_TIMES))
    how = f"median of {_TIMES}; py-spy dump alone: {alone_ms:.0f} ms; the limit leaves half for noise"
    return Measurement("pause of a rank under ddx stacks", ours_ms, 1.5 * alone_ms, "ms", how)


def _longest_pause_ms(which: str) -> float:
    with waiting_ranks(1, PAUSING) as ranks:
        pid = str(ranks[0].pid)
        argv = [DDX, "stacks", pid, "--json"] if which == "ddx" else [_PYSPY, "dump", "--json", "--pid", pid]
        subprocess.run(argv, capture_output=True, check=False)
        out, _ = ranks[0].communicate()
        return float(out)
