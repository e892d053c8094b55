"""The end of a server: what its tools started ends with it, and nobody waits for a thread that hangs."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

_CHILDREN_END_AFTER_S = 1.0
"""A stack dump takes less. Killed in the middle of one, py-spy might leave its target stopped."""
_PROCESS_ENDS_AFTER_S = 2.0
"""MCP clients wait about as long before they send signals."""
_LOOK_EVERY_S = 0.05
_REAPING_S = 0.5


def end_soon() -> None:
    """Count down to the end of this process and of its children; returns at once.

    Call it when the client is gone. Usually the server has wound up before, and the count ends with the interpreter.
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
