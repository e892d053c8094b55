"""The engine of `ddx run`: directory, environment, launcher, and what to do when the job goes wrong."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ddx_server.run import directory
from ddx_server.run.environment import for_job
from ddx_server.run.launch import Launcher, die_like, find_program
from ddx_server.run.streams import LauncherLog, Pump, copy_window_size, open_channels
from ddx_server.run.watch import RankWatch
from ddx_tools.errors import UsageError

DEFAULT_STALL_AFTER_S = 300.0
"""Half of NCCL's default timeout (10 min), after which its watchdog aborts the job and with it goes the live
evidence; a false alarm, such as a first compilation, costs one capture."""

_CAPTURE_SECONDS = 60.0


@dataclass(frozen=True)
class Incident:
    """Something went wrong with the job: it `failed` (it has ended), or it `stalled` (it still runs)."""

    kind: Literal["failed", "stalled"]
    run_dir: Path
    launcher_pid: int
    exit_code: int | None = None
    """Of the launcher, minus the signal that killed it; None while it runs."""


@dataclass(frozen=True)
class RunOptions:
    """`dir` None: `./ddx-runs/<time>-<pid>`. `stall_after_s` None: never look for a stall."""

    dir: Path | None = None
    stall_after_s: float | None = DEFAULT_STALL_AFTER_S
    rank_logs: bool = True


OnIncident = Callable[[Incident], Path | None]
"""Captures the evidence and returns where it is. After the job if that failed; beside it if it stalled, on a
thread of its own, whose child processes inherit blocked signals and end by SIGKILL only."""


def run_command(argv: Sequence[str], options: RunOptions, on_incident: OnIncident) -> int:
    """Run a launcher and return its exit code; if a signal killed it, die by the same signal.

    Standard input, output and errors are the launcher's; one line on stderr is ours, after an incident.
    Raises UsageError if the job cannot be started.
    """
    if not sys.platform.startswith("linux"):
        raise UsageError("ddx run needs Linux", "Start the job without it; `ddx why` reads its logs here, too.")
    if not argv:
        raise UsageError("no launcher given", "Type it behind two dashes: ddx run -- torchrun … train.py")
    program = find_program(argv[0])
    run_dir = directory.create(options.dir)
    job = for_job(os.environ, run_dir, argv, rank_logs=options.rank_logs)
    record: dict[str, Any] = {"variables": job.variables, "kept": job.kept, "started_at_s": time.time()}

    log = LauncherLog(run_dir / "launcher.log")
    channels = open_channels()
    outputs = {stream: channel.inner for channel in channels for stream in channel.streams}
    launcher = Launcher(program, argv, job.environ, outputs)
    try:
        record["launcher_pid"] = launcher.pid
        directory.describe(run_dir, argv, record)
        for channel in channels:
            os.close(channel.inner)
        pumps = [Pump(channel, log) for channel in channels]
        reporters: list[threading.Thread] = []

        def on_stall() -> None:
            stalled = Incident("stalled", run_dir, launcher.pid)
            reporters.append(threading.Thread(target=_report, args=(stalled, on_incident), daemon=True))
            reporters[-1].start()

        watch = RankWatch(run_dir, log, options.stall_after_s, on_stall)
        code = launcher.wait(
            on_resize=lambda: copy_window_size(channels),
            on_stop=watch.save_before_stop,
        )
        for pump in pumps:
            pump.finish()
        left = watch.stop()
    finally:
        launcher.release_signals()

    log.close()
    directory.sweep(run_dir)
    directory.describe(run_dir, argv, {**record, "ended_at_s": time.time(), "exit_code": code})
    if left:
        ranks = ", ".join(f"rank {address.rank} (pid {address.pid})" for address in left)
        _say(f"the launcher has ended, but these still run: {ranks}")
    if launcher.stop_asked:
        if code != 0:
            _say(f"the job was stopped. If it hung before that: ddx why {shlex.quote(str(run_dir))}")
        return die_like(code)
    for reporter in reporters:
        reporter.join(_CAPTURE_SECONDS)
    if code != 0:
        _report(Incident("failed", run_dir, launcher.pid, code), on_incident)
    return die_like(code)


def _report(incident: Incident, on_incident: OnIncident) -> None:
    """Capture, and say in one line what happened and what to type; nothing in here may hurt the job."""
    evidence: Path | None = None
    nothing = False
    try:
        evidence = on_incident(incident)
    except UsageError:  # it died before it had said anything
        nothing = True
    except KeyboardInterrupt:
        _say("capture abandoned")
    except Exception as error:
        _say(f"the evidence could not be captured ({type(error).__name__}: {str(error)[:200]})")
    if incident.kind == "stalled":
        what = "no output and no collective for a while; the job still runs"
    elif (incident.exit_code or 0) < 0:
        what = f"the launcher was killed by {signal.Signals(-(incident.exit_code or 0)).name}"
    else:
        what = f"the job failed with exit code {incident.exit_code}"
    if nothing:
        _say(f"{what}, and left no output and no record to look at; {incident.run_dir}/run.json says what was started.")
        return
    _say(f"{what}. To find out why: ddx why {shlex.quote(str(evidence or incident.run_dir))}")


def _say(sentence: str) -> None:
    from ddx_tools.sources.redaction.text import redact

    # Through the descriptor: sys.stderr may belong to a display of the caller's.
    with contextlib.suppress(OSError):
        os.write(2, f"ddx: {redact(sentence)}\n".encode())
