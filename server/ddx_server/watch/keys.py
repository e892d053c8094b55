"""Keys that are pressed while a screen is shown."""

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
"""What is pressed within so many seconds, at once when something is; "" if nothing is."""


@contextmanager
def pressed_keys(wanted: bool) -> Iterator[Keys]:
    """Keys as they are pressed, if they are wanted and standard input is a terminal and ours; else there are none."""
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
