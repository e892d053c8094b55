"""Processes that decode flight records and memory snapshots: this interpreter once more, with the decoder alone.

`multiprocessing` would import the asking program in each of them (a command line, a server, somebody's script without
a guard), or fork it while its threads hold locks. These read pieces from their standard input and write results to
their standard output, and end when their input does: with the asking process, however that ends.

One that has nothing to do is kept for who asks next.
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
"""What an ordinary user may have on Linux; no system call for each 64 KiB of a result."""
_LEAST_CPU_S = 3
_BYTES_A_CPU_S = 1 << 20
"""A tenth of what is decoded in a second."""
_LONGEST_REASON = 200

_ENVIRONMENT = ("PYTHON", "HOME", "LANG", "LC_", "LD_", "DYLD_", "DDX_")
"""What begins so is handed down. One that inherits RANK, say, would look like a rank to whoever looks at processes."""

_Given = TypeVar("_Given")
_Result = TypeVar("_Result")
_Process = subprocess.Popen[bytes]
_kept: dict[int, _Process] = {}
"""Of this process, by its pid: one that was forked from it has none."""


class WorkerEnded(Exception):
    """A process ended before it gave its result; the text says why."""


class WorkerNotStarted(WorkerEnded):
    """No process could be started, or it ended before it took any work: nothing was learnt of the material."""


class Workers:
    """Some processes that decode pieces, each started when it is needed."""

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count)
        self._lock = Lock()
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._closed = False

    def submit(self, work: Callable[[_Given], _Result], given: _Given, size_bytes: int) -> Future[_Result]:
        """Hand a function of a module over, with what it decodes and how many bytes that is.

        The future raises `WorkerEnded` if its process ends meanwhile or none starts.
        """
        cpu_s = _LEAST_CPU_S + size_bytes // _BYTES_A_CPU_S
        return self._threads.submit(self.do, work, given, cpu_s, serving.MOST_BYTES)

    def close(self) -> None:
        """End the processes, whatever they do, but for an idle one."""
        with self._lock:
            self._closed = True
            for process in self._busy:
                process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in self._idle:
            if _kept.setdefault(os.getpid(), process) is not process:
                _end(process)

    def do(self, work: Callable[[_Given], _Result], given: _Given, cpu_s: int, most_bytes: int) -> _Result:
        """Have a function of a module called in a process, with so much CPU time and address space. Raises as above."""
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
        """An idle process or, if there is none, a new one; whether it is new."""
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
    """Processes for the time of a block, at most so many."""
    some = Workers(count)
    try:
        yield some
    finally:
        some.close()


def worker_count() -> int:
    """As many processes as this one may use CPUs, within reason."""
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
    return f"the process that reads such files did not start ({reason}). The files are not to blame: nobody read them"


def _end(process: _Process) -> int:
    """End a process; its exit status, below 0 for a signal."""
    process.kill()
    process.communicate()
    return process.returncode


@atexit.register
def _end_kept() -> None:
    if process := _kept.pop(os.getpid(), None):
        _end(process)


def _why(status: int) -> str:
    if status == -signal.SIGXCPU:
        return "it takes more CPU time than such a file can need"
    if status == -signal.SIGKILL:
        return "a process that read it was killed, perhaps for lack of memory (dmesg tells)"
    ended = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    return f"it ended the process that read it ({ended}): it is damaged, or made to do so"
