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

    Raises SystemExit with 128 and the signal's number, and KeyboardInterrupt as ever: also where a library that was
    at work made another error of it (DuckDB: `Query interrupted`). In a thread besides the main one nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    ending: list[BaseException] = []

    def unwind(number: int, _: FrameType | None) -> None:
        ending.append(KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number))
        raise ending[-1]

    numbers = [signal.SIGTERM, signal.SIGHUP]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        numbers.append(signal.SIGINT)
    previous = {number: signal.signal(number, unwind) for number in numbers}
    try:
        yield
    except Exception as error:
        if ending:
            raise ending[0] from error
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
