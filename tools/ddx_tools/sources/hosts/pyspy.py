"""Reads Python stacks with py-spy and explains its failures.

py-spy 0.4 `dump --json`: a list of threads `{pid, thread_id, thread_name, os_thread_id, active, owns_gil, frames:
[{name, filename, module, short_filename, line, locals, is_entry}], process_info}`, innermost frame first. Its exit code
is 1 for every failure; only stderr says which one it was.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from ddx_tools.model.errors import HostError, NotFound, NotPermitted, TimedOut

_RATE = 25
"""Samples per second."""
INSTALL_HELP = "Install it next to ddx: pip install py-spy"
PERMISSION_HELP = (
    "Run ddx as the user who owns the job, or with sudo. In a container: start it with --cap-add SYS_PTRACE, "
    "or run ddx on its host. If /proc/sys/kernel/yama/ptrace_scope is 1 or 2, only root or a parent process may read "
    "stacks: sudo sysctl kernel.yama.ptrace_scope=0 (until the next boot)."
)

_FAILURES: tuple[tuple[re.Pattern[str], type[HostError], str, str], ...] = (
    (
        re.compile(r"No such file or directory|No such process|os error 3\b"),
        NotFound,
        "the process is gone, or is in another pid namespace",
        "List the processes: ddx jobs. For a job in a container, run ddx inside it or in the host's namespace.",
    ),
    (
        re.compile(r"EPERM|unexpected waitpid result"),
        NotPermitted,
        "another tracer (a debugger, strace) holds the process, or it is stopped",
        "Detach the debugger; ddx reads stopped processes without attaching.",
    ),
    (
        re.compile(r"[Pp]ermission [Dd]enied|os error 1[3]?\b|Operation not permitted"),
        NotPermitted,
        "this user may not read the process",
        PERMISSION_HELP,
    ),
    (
        re.compile(r"Failed to find python version|Failed to find a python interpreter|not a python"),
        HostError,
        "it is not a Python process, or it has only just started",
        "Wait a second and try again: ddx stacks.",
    ),
)


PROGRAM = "DDX_PY_SPY"
"""The variable for the program's path, if it is neither beside our interpreter nor on PATH."""


def find_pyspy() -> str:
    """The path of py-spy: from the environment, beside our own interpreter, or on PATH. Raises NotFound."""
    beside = Path(sys.executable).with_name("py-spy")
    found = os.environ.get(PROGRAM) or (str(beside) if beside.exists() else shutil.which("py-spy"))
    if not found:
        raise NotFound("py-spy is not installed, so no stack can be read", INSTALL_HELP)
    return found


def dump_argv(pid: int, *, blocking: bool, native: bool, show_locals: bool) -> list[str]:
    """The py-spy command that dumps one process as JSON with full file names."""
    argv = [find_pyspy(), "dump", "--json", "--full-filenames", "--pid", str(pid)]
    argv += ["--nonblocking"] * (not blocking) + ["--native"] * native + ["--locals"] * show_locals
    return argv


def dump(pid: int, *, blocking: bool, native: bool, show_locals: bool, timeout_s: float) -> bytes:
    """Dump the stacks of one process as JSON."""
    argv = dump_argv(pid, blocking=blocking, native=native, show_locals=show_locals)
    return _output(pid, argv, timeout_s, b"[")


def record(pid: int, seconds: float, *, timeout_s: float) -> bytes:
    """Record the collapsed stacks of a process, with the number of samples of each."""
    argv = [find_pyspy(), "record", "--pid", str(pid), "--duration", str(max(1, round(seconds))), "--rate", str(_RATE)]
    argv += ["--idle", "--threads", "--full-filenames", "--format", "raw", "--output", "/dev/stdout"]
    return b"".join(
        line for line in _output(pid, argv, timeout_s).splitlines(keepends=True) if not line.startswith(b"py-spy>")
    ).lstrip()


def _output(pid: int, argv: list[str], timeout_s: float, start: bytes = b"") -> bytes:
    """Run py-spy and return its output; it is killed at the deadline."""
    try:
        done = subprocess.run(argv, capture_output=True, timeout=timeout_s, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired as error:
        raise TimedOut(
            f"py-spy gave no stack of pid {pid} within {timeout_s:g} s",
            "A process in an uninterruptible call or a frozen cgroup cannot be paused: ddx reads it without pausing.",
        ) from error
    if done.returncode == 0 and done.stdout.startswith(start):
        return done.stdout
    raise explain_failure(pid, done.stderr.decode("utf-8", "replace"))


def explain_failure(pid: int, stderr: str) -> HostError:
    """The error for py-spy's stderr: a known reason, with its remedy."""
    for pattern, kind, reason, help_text in _FAILURES:
        if pattern.search(stderr):
            return kind(f"no stack of pid {pid}: {reason}", help_text)
    first = next((line.strip() for line in stderr.splitlines() if line.strip()), "no message")
    return HostError(f"no stack of pid {pid}: py-spy failed ({first[:200]})", "See: ddx doctor")
