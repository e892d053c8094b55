"""Processes that decode: this interpreter once more for each CPU, with the decoder and nothing else imported.

`multiprocessing` would import the asking program in each of them (a command line, a server, somebody's script without
a guard), or fork it while its threads hold locks. These read pieces from their standard input and write results to
their standard output, and end when their input does: with the asking process, however that ends.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any, Generic, TypeVar

_MAX_PROCESSES = 16

P = TypeVar("P")
R = TypeVar("R")


class WorkerKilled(Exception):
    """A process ended before it gave its result."""


class Workers(Generic[P, R]):
    """Some processes that apply a function of `ddx_tools` to pieces of work."""

    def __init__(self, function: Callable[[P], R], count: int) -> None:
        code = f"from {__name__} import serve; from {function.__module__} import {function.__name__} as f; serve(f)"
        # -P: whatever lies in the current directory is no module.
        argv = [sys.executable, "-P", "-c", code]
        self._threads = ThreadPoolExecutor(count)
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._processes = [
            subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
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
            _write(process.stdin, piece)
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


def serve(function: Callable[[Any], Any]) -> None:
    """What such a process does. Ctrl-C is for whoever asks, who ends it then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    Thread(target=_end_with_the_asker, daemon=True).start()
    pieces, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that somebody prints may come between the results
    for piece in _received(pieces):
        _write(results, function(piece))


def _end_with_the_asker() -> None:
    """Nobody waits for a result any more once the other end of the standard input is closed."""
    closed = select.poll()
    closed.register(0, 0)  # a hang-up is always reported
    closed.poll()
    os._exit(1)


def _received(stream: IO[bytes]) -> Iterable[Any]:
    while True:
        try:
            yield pickle.load(stream)
        except EOFError:
            return


def _write(stream: IO[bytes] | None, value: Any) -> None:
    assert stream is not None
    pickle.dump(value, stream, 5)
    stream.flush()
