"""Ends the server: processes that its tools started end with it, and a hung thread does not delay it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

_CHILDREN_END_AFTER_S = 1.0
"""A stack dump takes less time. py-spy, killed during one, might leave its target stopped."""
_PROCESS_ENDS_AFTER_S = 2.0
"""MCP clients wait about this long before they send signals."""
_LOOK_EVERY_S = 0.05
_REAPING_S = 0.5


def end_soon() -> None:
    """Start a countdown to the end of this process and its children, and return at once.

    Call it when the client is gone. Usually the server shuts down earlier, and the countdown ends with the interpreter.
    """
    threading.Thread(target=_count_down, name="ending", daemon=True).start()


def _count_down() -> None:
    import psutil

    began_s = time.monotonic()
    while (passed_s := time.monotonic() - began_s) < _PROCESS_ENDS_AFTER_S:
        if passed_s > _CHILDREN_END_AFTER_S:
            _kill_children()
        time.sleep(_LOOK_EVERY_S)
    psutil.wait_procs(_kill_children(), timeout=_REAPING_S)
    os._exit(0)


def _kill_children() -> list[psutil.Process]:
    import psutil

    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.Error):
            child.kill()
    return children
