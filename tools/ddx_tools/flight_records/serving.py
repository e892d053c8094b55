"""The other end of `workers`: what a process does that works for another one. It starts often: it imports little."""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import sys
from collections.abc import Callable, Iterable
from threading import Thread
from typing import IO, Any


def serve(function: Callable[[Any], Any]) -> None:
    """Send the result of each piece that comes in. Ctrl-C is for whoever asks, who ends this process then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    Thread(target=_end_with_the_asker, daemon=True).start()
    pieces, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that somebody prints may come between the results
    for piece in _received(pieces):
        send(results, function(piece))


def send(stream: IO[bytes] | None, value: Any) -> None:
    """Write a value for the process at the other end."""
    assert stream is not None
    pickle.dump(value, stream, 5)
    stream.flush()


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
