"""Reads the keys that are pressed while a screen is shown."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Keys = Callable[[float], str]
"""Waits up to so many seconds for a key and returns what was pressed; "" if nothing was."""


@contextmanager
def pressed_keys(wanted: bool) -> Iterator[Keys]:
    """Yield a reader of pressed keys; it reads none unless `wanted` and standard input is our own terminal."""
    try:
        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd) if wanted and os.tcgetpgrp(fd) == os.getpgrp() else None
    except (OSError, ValueError, AttributeError, termios.error):
        before = None
    if before is None:
        yield _wait
        return

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([fd], [], [], seconds)
        data = os.read(fd, 64) if ready else b""
        return data.decode(errors="replace") if data or not ready else _wait(seconds)

    tty.setcbreak(fd)
    try:
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _wait(seconds: float) -> str:
    time.sleep(seconds)
    return ""
