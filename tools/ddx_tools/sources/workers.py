"""Processes that decode flight records and memory snapshots: this interpreter again, with only the decoder.

`multiprocessing` would import the calling program in each of them (a command line, a server, a script without a main
guard), or fork it while its threads hold locks. These workers read pieces from standard input, write results to
standard output, and end when their input closes, however the calling process ends.

An idle worker is kept for the next caller.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar

from ddx_tools.model.own_python import python_argv
from ddx_tools.sources import worker_process as serving

_MAX_PROCESSES = 16
_PIPE_BYTES = 1 << 20
"""The maximum for an ordinary user on Linux; it avoids a system call per 64 KiB of a result."""
_LEAST_CPU_S = 3
_BYTES_A_CPU_S = 1 << 20
"""A tenth of what is decoded per second."""
_LONGEST_REASON = 200

_ENVIRONMENT = ("PYTHON", "HOME", "LANG", "LC_", "LD_", "DYLD_", "DDX_")
"""Prefixes of inherited variables. A worker that inherits RANK, say, would look like a rank in the process table."""

_Given = TypeVar("_Given")
_Result = TypeVar("_Result")
_Process = subprocess.Popen[bytes]
_kept: dict[int, _Process] = {}
"""The idle worker of each process, by pid: a forked child has none."""


class WorkerEnded(Exception):
    """A process ended before it returned its result; the message says why."""


class WorkerNotStarted(WorkerEnded):
    """No process could be started, or it ended before taking any work, so nothing is known about the material."""


class Workers:
    """A pool of processes that decode pieces, each started when needed."""

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count)
        self._lock = Lock()
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._closed = False

    def submit(self, work: Callable[[_Given], _Result], given: _Given, size_bytes: int) -> Future[_Result]:
        """Run a module-level function on `given`, of `size_bytes`, in a worker; return a future.

        The future raises `WorkerEnded` if its process ends meanwhile or none starts.
        """
        cpu_s = _LEAST_CPU_S + size_bytes // _BYTES_A_CPU_S
        return self._threads.submit(self.do, work, given, cpu_s, serving.MOST_BYTES)

    def close(self) -> None:
        """End the processes, even busy ones, except one idle process."""
        with self._lock:
            self._closed = True
            for process in self._busy:
                process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in self._idle:
            if _kept.setdefault(os.getpid(), process) is not process:
                _end(process)

    def do(self, work: Callable[[_Given], _Result], given: _Given, cpu_s: int, most_bytes: int) -> _Result:
        """Call a module-level function in a process with limited CPU time and address space. Raises like `submit`."""
        process, is_new = self._taken()
        try:
            if is_new:
                _wait_until_ready(process)
            serving.send(process.stdin, (cpu_s, most_bytes, work, given))
            result: _Result = pickle.load(process.stdout)  # type: ignore[arg-type]  # written by `serve`
            self._idle.append(process)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise WorkerEnded(_why(_end(process))) from error
        finally:
            self._busy.discard(process)
        return result

    def _taken(self) -> tuple[_Process, bool]:
        """An idle process, or else a new one, and whether it is new."""
        with self._lock:
            if self._closed:
                raise WorkerEnded("nobody waits for it any more")
            process = self._idle.pop() if self._idle else _kept.pop(os.getpid(), None)
            if process is not None and process.poll() is not None:
                _end(process)
                process = None
            is_new = process is None
            process = process or _started()
            self._busy.add(process)
        return process, is_new


@contextmanager
def workers(count: int) -> Iterator[Workers]:
    """Yield a pool of at most `count` processes for the block."""
    some = Workers(count)
    try:
        yield some
    finally:
        some.close()


def worker_count() -> int:
    """The number of CPUs that this process may use, up to a limit."""
    cpus = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(cpus, _MAX_PROCESSES)


def _started() -> _Process:
    argv = python_argv(f"from {serving.__name__} import serve; serve()")
    env = {name: value for name, value in os.environ.items() if name.startswith(_ENVIRONMENT)}
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, stderr=pipe, pipesize=_PIPE_BYTES)
    except OSError as error:
        raise WorkerNotStarted(_not_started(error.strerror or str(error))) from error


def _wait_until_ready(process: _Process) -> None:
    """Wait until a new process can take work. Raises WorkerNotStarted, with the last line that it printed."""
    try:
        ready = pickle.load(process.stdout)  # type: ignore[arg-type]  # written by `serve`
    except (EOFError, OSError, pickle.UnpicklingError) as error:
        process.kill()
        _, printed = process.communicate()
        lines = printed.decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), f"exit status {process.returncode}")
        raise WorkerNotStarted(_not_started(last[:_LONGEST_REASON])) from error
    assert ready == serving.READY


def _not_started(reason: str) -> str:
    return f"the process that reads such files did not start ({reason}). The files themselves were not read"


def _end(process: _Process) -> int:
    """End a process; return its exit status, negative for a signal."""
    process.kill()
    process.communicate()
    return process.returncode


@atexit.register
def _end_kept() -> None:
    if process := _kept.pop(os.getpid(), None):
        _end(process)


def _why(status: int) -> str:
    if status == -signal.SIGXCPU:
        return "it takes more CPU time than such a file should need"
    if status == -signal.SIGKILL:
        return "a process that read it was killed, perhaps because memory ran out (see dmesg)"
    ended = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    return f"it ended the process that read it ({ended}): it is damaged or malicious"
