"""Processes that decode: this interpreter once more for each CPU, with the decoder and nothing else imported.

`multiprocessing` would import the asking program in each of them (a command line, a server, somebody's script without
a guard), or fork it while its threads hold locks. These read pieces from their standard input and write results to
their standard output, and end when their input does: with the asking process, however that ends.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Generic, TypeVar

from ddx_tools.flight_records import serving

_MAX_PROCESSES = 16
_PIPE_BYTES = 1 << 20
"""What an ordinary user may have on Linux; no system call for each 64 KiB of a result."""

P = TypeVar("P")
R = TypeVar("R")


class WorkerKilled(Exception):
    """A process ended before it gave its result."""


class Workers(Generic[P, R]):
    """Some processes that apply a function of `ddx_tools` to pieces of work."""

    def __init__(self, function: Callable[[P], R], count: int) -> None:
        from_where = f"from {function.__module__} import {function.__name__} as function"
        code = f"from {serving.__name__} import serve; {from_where}; serve(function)"
        # -P: whatever lies in the current directory is no module.
        argv = [sys.executable, "-P", "-c", code]
        self._threads = ThreadPoolExecutor(count)
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._processes = [
            subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pipesize=_PIPE_BYTES
            )
            for _ in range(count)
        ]
        for process in self._processes:
            self._idle.put(process)

    def submit(self, piece: P) -> Future[R]:
        """Hand over a piece. The future raises `WorkerKilled` if its process ends meanwhile."""
        return self._threads.submit(self._ask, piece)

    def close(self) -> None:
        """End all processes, whatever they do."""
        for process in self._processes:
            process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in self._processes:
            process.communicate()

    def _ask(self, piece: P) -> R:
        process = self._idle.get()
        try:
            serving.send(process.stdin, piece)
            result: R = pickle.load(process.stdout)  # type: ignore[arg-type]  # written by `serve`
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise WorkerKilled from error
        finally:
            self._idle.put(process)
        return result


@contextmanager
def workers(function: Callable[[P], R], count: int) -> Iterator[Workers[P, R]]:
    """Processes for the time of a block."""
    started = Workers(function, count)
    try:
        yield started
    finally:
        started.close()


def worker_count() -> int:
    """As many processes as this one may use CPUs, within reason."""
    cpus = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(cpus, _MAX_PROCESSES)
