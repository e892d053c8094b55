"""The other end of `workers`: a process that decodes pickles for another. It starts often and imports little.

It may be lost: its memory and its CPU time are limited, and what a pickle does to it, it does to nobody else.
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
"""Address space: a record of `MAX_BYTES` takes nearly as much. Only its size bounds it where the system does not."""

READY = "ready"
"""What is sent before any result: everything is imported that decoding needs."""


def serve() -> None:
    """Send what is decoded of each piece that comes in. Ctrl-C is for whoever asks, who ends this process then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    gc.freeze()
    _limit(resource.RLIMIT_CORE, 0)
    Thread(target=_end_with_the_asker, daemon=True).start()
    pieces, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    send(results, READY)
    # What failed until now is said on standard error; nobody reads that any more, nor may it come between the results.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.dup2(2, 1)
    for cpu_s, most_bytes, work, materials in _received(pieces):
        _limit(resource.RLIMIT_AS, most_bytes)
        _limit(resource.RLIMIT_CPU, int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2])) + 1 + cpu_s)
        send(results, work(materials))
        gc.collect()  # a record that holds itself


def send(stream: IO[bytes] | None, value: Any) -> None:
    """Write a value for the process at the other end."""
    assert stream is not None
    pickle.dump(value, stream, 5)
    stream.flush()


def _limit(what: int, most: int) -> None:
    """Set the limit that can be raised again, unless it is lower anyway."""
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


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
