"""Runs a preflight on this machine: starts it, watches its deadlines, and diagnoses a hang before ending it.

The directory of a run (mode 0700) holds

preflight.json        what was started and how it ended, see `PreflightOutcome`
rank-<rank>.jsonl     what each rank saw: see ddx_tools/payloads/preflight_payload.py
launcher.log          what the launcher and the ranks printed
ranks/                sockets of the rank agents
nccl-tests.txt        what all_reduce_perf printed, if it is installed
incident.tar.zst      the bundle of a run that failed or hung; `diagnosis.json` is its diagnosis
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from ddx_tools.model.diagnosis import Diagnosis
from ddx_tools.model.errors import DdxError, UsageError
from ddx_tools.probes.preflight import job
from ddx_tools.probes.preflight.args import PreflightArgs
from ddx_tools.redaction.published import published_json
from ddx_tools.redaction.structures import redact_argv
from ddx_tools.sources.hosts.ended_by_signals import ended_by_signals

AskWhy = Callable[[str, Path], Diagnosis]
_LOOK_S = 0.1
_NCCL_TESTS = "all_reduce_perf"
_NCCL_TESTS_S = 300.0


@dataclass
class PreflightOutcome:
    """How a preflight run ended, as `preflight.json` keeps it."""

    command: str
    state: Literal["ended", "failed", "expired"] = "ended"
    """The launcher ended; it failed; no rank made progress within a step's deadline."""
    exit_code: int | None = None
    wall_s: float = 0.0
    quiet_s: float | None = None
    """How long no rank had made progress when the deadline expired."""
    bundle: str | None = None
    not_investigated: str | None = None
    """Why the run's end could not be investigated."""
    not_ended: list[int] | None = None
    """The pids that could not be killed."""


def run_preflight(args: PreflightArgs, ask_why: AskWhy) -> Path:
    """Run a preflight and return its directory. Raises UsageError if it cannot be started.

    `ask_why` diagnoses a hang or failure, given a pid or a directory, and keeps the bundle at a path.

    Whatever happens (an error, Ctrl-C, SIGTERM), no process of the run is left.
    """
    directory = _new_directory(args.directory)
    by_nccl_tests = _run_nccl_tests(args, directory)
    argv = job.command_of(args, directory, sweep=not by_nccl_tests)
    outcome = PreflightOutcome(shlex.join(redact_argv(argv))[:2000])
    began = time.monotonic()
    launcher: subprocess.Popen[bytes] | None = None
    with ended_by_signals():
        try:
            launcher = job.start(argv, directory)
            outcome.quiet_s = _watch(launcher, args, directory)
            outcome.exit_code = launcher.poll()
            if outcome.quiet_s is not None:
                outcome.state = "expired"
                _investigate(ask_why, str(launcher.pid), directory, outcome)
        finally:
            outcome.not_ended = job.end(directory) or None
            if launcher and not outcome.not_ended:
                launcher.wait()
    if outcome.exit_code:
        outcome.state = "failed"
        _investigate(ask_why, str(directory), directory, outcome)
    outcome.wall_s = time.monotonic() - began
    (directory / "preflight.json").write_text(json.dumps(asdict(outcome), indent=2), encoding="utf-8")
    return directory


def _new_directory(wanted: str | None) -> Path:
    try:
        if wanted is None:
            directory = Path(tempfile.mkdtemp(prefix="ddx-preflight-"))
        else:
            directory = Path(wanted).absolute()
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if (directory / "preflight.json").exists():
                raise UsageError(
                    f"{directory}: it holds the results of an earlier preflight",
                    f"Read them: ddx preflight {shlex.quote(str(directory))}. Or name a new directory.",
                )
        # The hosts of one job may share the directory.
        (directory / "ranks").mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}", "Name another directory: --directory DIR") from error
    return directory


def _watch(launcher: subprocess.Popen[bytes], args: PreflightArgs, directory: Path) -> float | None:
    """Wait until the launcher ends (None), or until no rank writes within the deadline (for how long none did)."""
    written, in_steps, moved = -1, False, time.monotonic()
    while launcher.poll() is None:
        files = list(directory.glob("rank-*.jsonl"))
        now_written = sum(file.stat().st_size for file in files)
        now = time.monotonic()
        if now_written != written:
            written, moved = now_written, now
            in_steps = _in_steps(files)
        elif now - moved > (args.step_deadline_s if in_steps else args.start_deadline_s):
            return now - moved
        time.sleep(_LOOK_S)
    return None


def _in_steps(files: Sequence[Path]) -> bool:
    """Whether ranks are running steps: after start-up, which imports torch, and before shutdown, which takes its own
    time."""
    written = [file.read_bytes() for file in files]
    started = any(b'"compare_clocks"' in lines for lines in written)
    return started and not all(lines.endswith(b'"kind": "done"}\n') for lines in written)


def _investigate(ask_why: AskWhy, target: str, directory: Path, outcome: PreflightOutcome) -> None:
    """Diagnose the run like any other job: by its launcher's pid while it hangs, or by its files if it failed."""
    bundle = directory / "incident.tar.zst"
    try:
        diagnosis = ask_why(target, bundle)
    except DdxError as error:
        outcome.not_investigated = error.message[:500]
        return
    outcome.bundle = str(bundle)
    (directory / "diagnosis.json").write_text(published_json(diagnosis), encoding="utf-8")


def _run_nccl_tests(args: PreflightArgs, directory: Path) -> bool:
    """Run nccl-tests on this host's GPUs, if installed, and take the bandwidth from it."""
    program, gpus = shutil.which(_NCCL_TESTS), job.gpu_count()
    nproc = args.nproc or gpus
    if program is None or args.launcher or args.backend == "gloo" or not 2 <= nproc <= gpus:
        return False
    argv = [program, "-b", "1K", "-e", f"{args.max_mib or 1024}M", "-f", "4", "-g", str(nproc)]
    with ended_by_signals(), (directory / "nccl-tests.txt").open("wb") as out, suppress(subprocess.TimeoutExpired):
        done = subprocess.run(argv, stdout=out, stderr=subprocess.STDOUT, timeout=_NCCL_TESTS_S, check=False)
        return done.returncode == 0
    return False
