"""The engine of `ddx run`: sets up directory and environment, starts the launcher, and watches the job."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ddx_server.run import directory, memory_kills
from ddx_server.run.attendant import Attendant, LookAt
from ddx_server.run.environment import for_job
from ddx_server.run.launch import FORWARDED, STOPPING, Launcher, die_like, find_program
from ddx_server.run.look import look_beside
from ddx_server.run.notify import Notifier
from ddx_server.run.patience import Patience
from ddx_server.run.streams import Channel, LauncherLog, Pump, copy_window_size, open_channels
from ddx_server.run.watch import JobLimits, RankWatch
from ddx_tools.model.errors import UsageError

DEFAULT_STALL_AFTER_S = 300.0
"""Half of NCCL's default timeout (10 min), after which its watchdog aborts the job and the live evidence is lost; if a
timeout is shorter, the capture is earlier."""
DEFAULT_GRACE_S = 30.0
"""The time between the signal that asks a job to end and the one that kills it: Slurm's KillWait, Kubernetes' grace
period."""


@dataclass(frozen=True)
class RunOptions:
    """Options of `ddx run`. `dir` None: `./ddx-runs/<time>-<pid>`. `stall_after_s` None: never capture a stall."""

    dir: Path | None = None
    stall_after_s: float | None = DEFAULT_STALL_AFTER_S
    rank_logs: bool = True
    notifier: Notifier = field(default_factory=Notifier)
    page: Path | None = None
    """File that each answer is written to as an HTML page."""
    grace_s: float = DEFAULT_GRACE_S
    look_on: signal.Signals | None = None
    """A signal that requests a capture at once and is not passed on."""
    quiet: bool = False
    """Print nothing into the job's output."""
    consistency: str = ""
    """The steps at which ranks record fingerprints of their state; see `steps_of`."""


def look_signal(name: str | None) -> signal.Signals | None:
    """The signal for a name such as USR1 or SIGUSR1. Raises UsageError if it is not an allowed one."""
    usable = {number.name.removeprefix("SIG"): number for number in FORWARDED if number not in STOPPING}
    if name is None:
        return None
    wanted = usable.get(name.upper().removeprefix("SIG"))
    if wanted is None:
        raise UsageError(f"--look-on {name}: not a signal that can be used", f"One of: {', '.join(usable)}.")
    return wanted


def steps_of(text: str) -> str:
    """Check a list of steps such as `1,2,100-103,/500` and return it unchanged. Raises UsageError if it is invalid."""
    if text and not re.fullmatch(r"(?:\d+(?:-\d+)?|/[1-9]\d*)(?:,(?:\d+(?:-\d+)?|/[1-9]\d*))*", text):
        raise UsageError(f"--consistency {text[:80]}: not step numbers", "For example: 0-3,100 or /500.")
    return text


def run_command(argv: Sequence[str], options: RunOptions, look_at: LookAt = look_beside) -> int:
    """Run a launcher and return its exit code; if a signal killed it, die by the same signal.

    Standard input, output and error belong to the launcher; lines on stderr that begin with `ddx: ` are ours. Raises
    UsageError if the job cannot be started.
    """
    if not sys.platform.startswith("linux"):
        raise UsageError("ddx run needs Linux", "Start the job without it; `ddx why` can read its logs here.")
    if not argv:
        raise UsageError("no launcher given", "Type it after two dashes: ddx run -- torchrun … train.py")
    program = find_program(argv[0])
    run_dir = directory.create(options.dir)
    job = for_job(os.environ, run_dir, argv, rank_logs=options.rank_logs, consistency=options.consistency)
    record: dict[str, Any] = {"variables": job.variables, "kept": job.kept, "started_at_s": time.time()}

    kills = memory_kills.counters()
    log = LauncherLog(run_dir / "launcher.log")
    channels = open_channels()
    outputs = {stream: channel.inner for channel in channels for stream in channel.streams}
    launcher = Launcher(program, argv, job.environ, outputs)

    say = partial(_say, [] if options.quiet else [channel for channel in channels if 2 in channel.streams])
    patience = Patience(time.monotonic(), options.stall_after_s)
    attendant = Attendant(run_dir, launcher.pid, patience, look_at, say, options.notifier, options.page)
    try:
        record["launcher_pid"] = launcher.pid
        directory.describe(run_dir, argv, record)
        for channel in channels:
            os.close(channel.inner)
        pumps = [Pump(channel, log) for channel in channels]
        watch = RankWatch(run_dir, log.path, patience, _limits(argv, job.environ), attendant)

        def on_stop(launcher_knows: bool) -> None:
            watch.save_before_stop()
            if not launcher_knows:
                attendant.stopping(watch.silence(), options.grace_s / 2, launcher.stop_repeated)

        code = launcher.wait(
            lambda: copy_window_size(channels),
            on_stop,
            options.look_on,
            lambda: attendant.asked(watch.silence()),
        )
        for pump in pumps:
            pump.finish()
        left = watch.stop()
    finally:
        launcher.release_signals()

    log.close()
    directory.sweep(run_dir)
    _keep_the_end(run_dir, argv, record, code, kills)
    if left:
        ranks = ", ".join(f"rank {address.rank} (pid {address.pid})" for address in left)
        say([f"the launcher has ended, but these are still running: {ranks}"])
    with contextlib.suppress(KeyboardInterrupt):
        _say_the_end(attendant, launcher, run_dir, code, say)
    return die_like(code)


def _say(channels: Sequence[Channel], lines: Sequence[str]) -> None:
    from ddx_tools.redaction.text import redact

    text = "".join(f"ddx: {redact(line)}\n" for line in lines)
    for channel in channels:
        with contextlib.suppress(OSError):
            channel.say(text)


def _keep_the_end(
    run_dir: Path, argv: Sequence[str], record: dict[str, Any], code: int, kills: Mapping[Path, str]
) -> None:
    if code != 0 and (killed := memory_kills.kills_since(kills, memory_kills.counters())):
        (run_dir / "memory-kills.txt").write_text(killed, encoding="utf-8")
    directory.describe(run_dir, argv, {**record, "ended_at_s": time.time(), "exit_code": code})
    directory.note_the_end(run_dir, code)


def _say_the_end(
    attendant: Attendant, launcher: Launcher, run_dir: Path, code: int, say: Callable[[Sequence[str]], None]
) -> None:
    if code == 0:
        attendant.ended_well()
        return
    attendant.finish()
    if launcher.stop_asked:
        say([f"the job was stopped. If it hung before, diagnose it: ddx why {shlex.quote(str(run_dir))}"])
    else:
        attendant.failed(_in_words(code))


def _in_words(code: int) -> str:
    if code < 0:
        return f"the launcher was killed by {signal.Signals(-code).name}"
    return f"the job failed with exit code {code}"


def _limits(argv: Sequence[str], environ: Mapping[str, str]) -> JobLimits:
    """The timeouts that the command and variables set; those of process groups come from the ranks."""
    from ddx_tools.parsers.launch.launch_command import meeting_of

    meeting = meeting_of(argv, environ)
    heartbeat_s = _number(environ.get("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"))
    end_s = _number(environ.get("SLURM_JOB_END_TIME"))
    ends_at_s = time.monotonic() + end_s - time.time() if end_s else None
    return JobLimits(heartbeat_s, ends_at_s, meeting.timeout_s if meeting else None)


def _number(text: str | None) -> float | None:
    return float(text) if text and text.isdigit() and int(text) else None
