"""How long a rank is paused while ddx samples it, beside what py-spy alone and the mere load of ddx do to it."""

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
    """Longest pause of a rank under `ddx stacks`, against py-spy's own pause and the wait for a CPU that ddx uses."""
    alone_ms = statistics.median(_pause_ms([_PYSPY, "dump", "--json", "--pid"]) for _ in range(_TIMES))
    beside_ms = statistics.median(_pause_ms([DDX, "stacks", "--json"], untouched=True) for _ in range(_TIMES))
    ours_ms = statistics.median(_pause_ms([DDX, "stacks", "--json"]) for _ in range(_TIMES))
    how = (
        f"median of {_TIMES}; py-spy dump alone {alone_ms:.1f} ms, ddx at work on another process {beside_ms:.1f} ms; "
        "the limit is half as much again as their sum"
    )
    return Measurement("pause of a rank under ddx stacks", ours_ms, 1.5 * (alone_ms + beside_ms), "ms", how)


def _pause_ms(look: list[str], *, untouched: bool = False) -> float:
    """The longest pause of a rank while a command looks at it, or (`untouched`) at another process."""
    with waiting_ranks(1, PAUSING) as ranks, waiting_ranks(1) as others:
        target = others[0] if untouched else ranks[0]
        subprocess.run([*look, str(target.pid)], capture_output=True, check=False)
        out, _ = ranks[0].communicate()
        return float(out)
