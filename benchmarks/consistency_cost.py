"""What `ddx consistency` costs a training step: one that is looked at, and all others."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measurement import Measurement

PROGRAM = Path(__file__).with_name("programs") / "looked_at_steps.py"
STEPS, LOOKED_AT = 60, "20,40"


def measure() -> Iterator[Measurement]:
    """A model of 13 million parameters on one thread, its steps with and without `ddx_consistency.look`, by turns."""
    with TemporaryDirectory() as directory:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), directory, str(STEPS), LOOKED_AT], capture_output=True, text=True, check=True
        )
    told = json.loads(done.stdout)
    step_s, called_s = statistics.median(told["without"]), statistics.median(told["call_s"])
    how = f"median of {len(told['without'])} steps of {step_s * 1e3:.0f} ms: MLP of 13 M parameters, Adam, 1 thread"
    yield Measurement("consistency, a step not looked at", called_s / step_s * 100, 0.5, "%", how)
    yield Measurement(
        "consistency, a step looked at", statistics.median(told["look_s"]) / step_s, math.inf, "steps", how
    )
