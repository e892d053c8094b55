"""Runs a preflight on this machine: starts it, watches its deadlines, and asks why before it ends what hangs.

The directory of a run (mode 0700) holds

preflight.json        what was started and how it ended, see `PreflightOutcome`
rank-<rank>.jsonl     what each rank saw: see ddx_tools/payloads/preflight_payload.py
launcher.log          what the launcher and the ranks printed
ranks/                sockets of the rank agents
nccl-tests.txt        what all_reduce_perf printed, where it is installed
incident.tar.zst      of a run that failed or came to a standstill: the bundle; `diagnosis.json` is what it says
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
    """How a run ended."""

    command: str
    state: Literal["ended", "failed", "expired"] = "ended"
    """The launcher came to its end; it failed; nothing moved for a step's deadline."""
    exit_code: int | None = None
    wall_s: float = 0.0
    quiet_s: float | None = None
    """For how long nothing had moved when the deadline was over."""
    bundle: str | None = None
    not_investigated: str | None = None
    """Why the end could not be looked into."""
    not_ended: list[int] | None = None
    """Pids that did not die."""


def run_preflight(args: PreflightArgs, ask_why: AskWhy) -> Path:
    """Run one and return its directory. Raises UsageError if it cannot be started.

    `ask_why` investigates what hangs or failed, a pid or a directory, and keeps the bundle at a path.

    Whatever happens (an error, Ctrl-C, SIGTERM), no process of it is left.
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
                    f"{directory}: another preflight ended there",
                    f"Look at it: ddx preflight {shlex.quote(str(directory))}. Or name a new directory.",
                )
        # Hosts of one job may share it.
        (directory / "ranks").mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}", "Name another place: --directory DIR") from error
    return directory


def _watch(launcher: subprocess.Popen[bytes], args: PreflightArgs, directory: Path) -> float | None:
    """Wait for the launcher's end: None. If no rank writes a line within the deadline: for how long none did."""
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
    """Between the start, which imports torch, and the end, where interpreters and launcher take their time."""
    written = [file.read_bytes() for file in files]
    started = any(b'"compare_clocks"' in lines for lines in written)
    return started and not all(lines.endswith(b'"kind": "done"}\n') for lines in written)


def _investigate(ask_why: AskWhy, target: str, directory: Path, outcome: PreflightOutcome) -> None:
    """What any other job is asked: its launcher's pid while it hangs, what it left where it failed."""
    bundle = directory / "incident.tar.zst"
    try:
        diagnosis = ask_why(target, bundle)
    except DdxError as error:
        outcome.not_investigated = error.message[:500]
        return
    outcome.bundle = str(bundle)
    (directory / "diagnosis.json").write_text(published_json(diagnosis), encoding="utf-8")


def _run_nccl_tests(args: PreflightArgs, directory: Path) -> bool:
    """Where somebody installed nccl-tests, bandwidth is what they say: on the GPUs of this host."""
    program, gpus = shutil.which(_NCCL_TESTS), job.gpu_count()
    nproc = args.nproc or gpus
    if program is None or args.launcher or args.backend == "gloo" or not 2 <= nproc <= gpus:
        return False
    argv = [program, "-b", "1K", "-e", f"{args.max_mib or 1024}M", "-f", "4", "-g", str(nproc)]
    with ended_by_signals(), (directory / "nccl-tests.txt").open("wb") as out, suppress(subprocess.TimeoutExpired):
        done = subprocess.run(argv, stdout=out, stderr=subprocess.STDOUT, timeout=_NCCL_TESTS_S, check=False)
        return done.returncode == 0
    return False
