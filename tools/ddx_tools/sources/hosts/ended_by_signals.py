"""Ends a command's child processes with it, even without Ctrl-C: on `kill`, `timeout` or a closed terminal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_INTERRUPTED = "Query interrupted"
"""DuckDB 2.0's message for any exception that a signal handler raises during a query."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that no child process is left behind.

    Raises SystemExit with 128 plus the signal's number, and KeyboardInterrupt as usual, even if a library has turned it
    into another error (DuckDB: `Query interrupted`). It has no effect outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    ending: list[SystemExit] = []

    def unwind(number: int, _: FrameType | None) -> None:
        ending.append(SystemExit(128 + number))
        raise ending[-1]

    previous = {number: signal.signal(number, unwind) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except Exception as error:
        if ending:
            raise ending[0] from error
        # Ctrl-C keeps its default handler: asyncio installs its own only in place of that one.
        if isinstance(error, RuntimeError) and str(error) == _INTERRUPTED:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
