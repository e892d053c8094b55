"""Runs a reproduction or its healthy twin within a deadline."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ddx_tools.model.errors import UsageError

_START_S = 120.0
"""Time to import torch and start on a busy machine."""


@dataclass(frozen=True)
class ReproRun:
    """The outcome of one run of the script."""

    through: bool
    lines: list[str]
    """What each rank is doing at the end."""


def run_script(script: Path, *, healthy: bool, backend: str, deadline_s: float) -> ReproRun:
    """Run the script on this machine. Raises UsageError if it cannot be started."""
    argv = [_python(), str(script), "--backend", backend, "--deadline", str(deadline_s)]
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "DDX_RUN_DIR")}
    try:
        done = subprocess.run(
            [*argv, *(["--healthy"] if healthy else [])],
            env={"OMP_NUM_THREADS": "1", **environment},
            capture_output=True,
            text=True,
            timeout=_START_S + 10 * deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"{script} did not finish", "Run it by hand to see where it stops.") from error
    lines = [line for line in done.stdout.splitlines() if line.startswith("rank ")]
    if not lines:
        said = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UsageError(f"{script} could not be run: {said[:300]}", "Activate the environment of your job.")
    return ReproRun(done.returncode == 0, lines)


def _python() -> str:
    return sys.executable if importlib.util.find_spec("torch") else shutil.which("python") or sys.executable
