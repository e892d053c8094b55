"""What a command started ends with it, also where nobody typed Ctrl-C: `kill`, `timeout`, a terminal that is closed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind the stack as Ctrl-C does, instead of leaving a job behind.

    Raises SystemExit with 128 and the signal's number. In a thread besides the main one nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def unwind(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, unwind) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
