"""The worker side of `workers`: a process that decodes pickles for another. It starts often and imports little.

It is expendable: its memory and CPU time are limited, and a harmful pickle affects only this process.
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import select
import signal
import sys
from collections.abc import Iterable
from threading import Thread
from typing import IO, Any

MOST_BYTES = 1 << 30
"""Limit on address space: a record of `MAX_BYTES` takes nearly as much. Some systems do not enforce it."""

READY = "ready"
"""Sent before any result, once everything that decoding needs is imported."""


def serve() -> None:
    """Run the worker process: receive pieces of work on stdin and send each result to the parent.

    Each piece has its own limits on CPU time and memory. Ctrl-C is left to the parent, which then ends this process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    gc.freeze()
    _limit(resource.RLIMIT_CORE, 0)
    Thread(target=_end_with_the_asker, daemon=True).start()
    pieces, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    send(results, READY)
    # Failures until now were reported on standard error; from here on nobody reads it, and it must not mix with
    # results.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.dup2(2, 1)
    for cpu_s, most_bytes, work, materials in _received(pieces):
        _limit(resource.RLIMIT_AS, most_bytes)
        _limit(resource.RLIMIT_CPU, int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2])) + 1 + cpu_s)
        send(results, work(materials))
        gc.collect()  # a self-referential record


def send(stream: IO[bytes] | None, value: Any) -> None:
    """Pickle a value to the pipe that leads to the parent or the worker, and flush it."""
    assert stream is not None
    pickle.dump(value, stream, 5)
    stream.flush()


def _limit(what: int, most: int) -> None:
    """Set the soft limit, unless it is already lower."""
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _end_with_the_asker() -> None:
    """End this process when the other end of standard input closes: nobody waits for a result any more."""
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
