"""What a command started ends with it, also where nobody typed Ctrl-C: `kill`, `timeout`, a terminal that is closed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_INTERRUPTED = "Query interrupted"
"""What DuckDB 2.0 makes of whatever a handler of signals raises during a query."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind the stack as Ctrl-C does, instead of leaving a job behind.

    Raises SystemExit with 128 and the signal's number, and KeyboardInterrupt as ever: also where a library that was
    at work made another error of it (DuckDB: `Query interrupted`). In a thread besides the main one nothing changes.
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
        # Ctrl-C keeps its handler: asyncio has one of its own only in place of that.
        if isinstance(error, RuntimeError) and str(error) == _INTERRUPTED:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
