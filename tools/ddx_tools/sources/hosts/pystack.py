"""Reads the stacks in core files with pystack (1.7), and explains its failures.

    pystack --no-color core CORE        see `ddx_tools.parsers.python.pystack_text` for what it prints

Its exit code is 2 if the core is of no Python process that it can read, and 1 for any other failure. A core is written
by a job and may be made up, so pystack has little time and memory. It prints the line of any file that a frame names:
these lines are left out, since they could be anybody's.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from ddx_tools.model.errors import HostError, NotFound, TimedOut

_MOST_BYTES = 8 << 20
_MOST_STDERR_BYTES = 4 << 10
_MOST_MEMORY_BYTES = 2 << 30
"""Of the process's own; a core that is mapped for reading does not count."""
_SOURCE_LINE = re.compile(rb"^ {8}.*\n?", re.MULTILINE)
_ENDED = re.compile(rb"^(?:The process died due |Traceback for thread \d)", re.MULTILINE)
_BY_HAND = "pystack core CORE > stacks_rankN.txt"
_FAILURES = (
    (re.compile("Detected executable doesn't exist"), "the Python that wrote it is not on this machine"),
    (
        re.compile("Could not gather enough information|not enough information"),
        "it is cut off, or its Python and libraries are not on this machine",
    ),
    (re.compile("doesn't look like a valid core file"), "it is damaged"),
    (re.compile("MemoryError|bad_alloc"), "it needs too much memory"),
)


def find_pystack() -> str:
    """The path of pystack: beside our own interpreter, or on PATH. Raises NotFound."""
    beside = Path(sys.executable).with_name("pystack")
    found = str(beside) if beside.exists() else shutil.which("pystack")
    if not found:
        raise NotFound(
            "it is the memory of a crashed process, which pystack reads, and pystack is not installed. Where the job "
            f"ran: pip install pystack, then {_BY_HAND}",
            "Install it next to ddx: pip install pystack",
        )
    return found


def core_stacks(core: int, *, timeout_s: float) -> bytes:
    """The stacks of all threads in a core, as text; `core` is its open file. Raises HostError if there are none."""
    argv = [find_pystack(), "--no-color", "core", f"/proc/self/fd/{core}"]
    # elfutils would ask these servers for debug information.
    environment = {key: value for key, value in os.environ.items() if key != "DEBUGINFOD_URLS"}
    with tempfile.TemporaryFile() as stderr:
        with subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env=environment, pass_fds=(core,)
        ) as process:
            assert process.stdout is not None
            _limit(process.pid)
            deadline = threading.Timer(timeout_s, process.kill)
            deadline.start()
            text = process.stdout.read(_MOST_BYTES)
            late = not deadline.is_alive()
            deadline.cancel()
            process.kill()  # it has said all, or too much
        stderr.seek(0)
        said = stderr.read(_MOST_STDERR_BYTES).decode("utf-8", "replace")
    if _ENDED.search(text):  # without stacks, it still says which signal ended the process
        return _SOURCE_LINE.sub(b"", text)
    if late:
        raise TimedOut(f"pystack read no stack from it within {timeout_s:g} s", f"By hand: {_BY_HAND}")
    why = next((reason for pattern, reason in _FAILURES if pattern.search(said)), None)
    first = next((line.strip() for line in said.splitlines() if line.strip()), "no message")
    raise HostError(f"pystack read no stack from it: {why or first[:200]}", f"By hand: {_BY_HAND}")


def _limit(pid: int) -> None:
    """Bound the memory that a process may take, and the files that it may write."""
    with suppress(OSError):  # it has ended already
        resource.prlimit(pid, resource.RLIMIT_DATA, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (_MOST_BYTES, _MOST_BYTES))
