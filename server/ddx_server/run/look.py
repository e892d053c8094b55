"""Captures and judges a job in a separate process, so that a failure there cannot affect the job or its output."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddx_server.render.output import EXIT_DIAGNOSED, EXIT_HEALTHY, EXIT_UNDECIDED
from ddx_tools.model.own_python import python_argv

_PROGRAM = "ddx_server.run.look_process"


@dataclass(frozen=True)
class JudgedLook:
    """The judged result of a capture."""

    verdict: str
    key: str
    """Cause and culprits; equal keys mean equal answers."""
    lines: list[str]
    """The answer as lines for a person."""
    lasting: bool
    """Whether the hang cannot resolve itself: no rank can still enter the collective, or one is stopped or gone."""
    waiting: bool
    """Whether a rank was seen to wait for others."""
    at_work: bool
    """Whether the ranks that others wait for are compiling, writing a checkpoint or evaluating, and make progress."""
    moving: bool = False
    """Whether all ranks that others wait for make progress."""
    slows: bool = False
    """Whether the cause only makes a job slow, so that it does not hang for good."""
    diagnosis: dict[str, Any] = field(default_factory=dict)
    """The diagnosis as `ddx why --json` prints it."""
    bundle: Path | None = None
    took_s: float = 0.0

    @property
    def is_narrowed(self) -> bool:
        """Whether the remaining causes are all of one kind, such as a failed start."""
        return bool(self.diagnosis.get("narrowed_to"))


class LookFailed(Exception):
    """There is no answer; the message says why."""


def look_beside(target: str, bundle: Path, limit_s: float) -> JudgedLook:
    """Capture and judge `target` (a pid, or what a job left behind) in a separate process; save the bundle.

    Raises LookFailed if that process fails, or takes longer than `limit_s`.
    """
    began = time.monotonic()
    # Nothing in the job's directory must be imported.
    program = f"import runpy; runpy.run_module({_PROGRAM!r}, run_name='__main__')"
    argv = python_argv(program, [target, str(bundle), str(limit_s)])
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True) as child:
        try:
            out, errors = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            raise LookFailed(f"it took longer than {limit_s:g} s") from error
        finally:
            # This also ends the programs that it has started.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    try:
        seen = json.loads(out)
    except ValueError as error:
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {child.returncode}"]
        raise LookFailed(last[0][:300]) from error
    return JudgedLook(**seen, bundle=bundle if bundle.exists() else None, took_s=time.monotonic() - began)


def write_page_beside(material: Path, out: Path, limit_s: float) -> str | None:
    """Write the HTML page of saved evidence in a separate process; return None, or the reason why that failed."""
    program = "from ddx_server.start import main; main()"
    argv = python_argv(program, ["report", str(material), "--out", str(out)])
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)[:300]
    if done.returncode in (EXIT_HEALTHY, EXIT_DIAGNOSED, EXIT_UNDECIDED):
        return None
    return (done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300]
