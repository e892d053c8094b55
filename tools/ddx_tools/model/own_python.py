"""This interpreter once more, with the modules that this process has: for work that may be lost with its process."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def python_argv(program: str, arguments: Sequence[str] = ()) -> list[str]:
    """The command line of a process that runs `program` and finds modules where this process finds them.

    A process that was started with `-P` or `-I` has only the default places, and this one may have been given more:
    by a launcher that sets `sys.path`, say. What lies in the current directory is no module of theirs.
    """
    # -I, as this process has it, keeps PYTHON* and the user's own packages out of its children, too.
    alone = "-I" if sys.flags.isolated else "-P"
    return [sys.executable, alone, "-c", f"import sys; sys.path[:] = {_module_places()!r}; {program}", *arguments]


def _module_places() -> list[str]:
    """The absolute entries of `sys.path`, without the current directory where Python put it first (`-m`, `-c`).

    Further down it is somebody's choice: the root of an editable install, say.
    """
    try:
        current = os.path.realpath(os.getcwd())  # noqa: PTH109 - compared as text with entries of sys.path
    except OSError:  # it was removed
        current = ""
    first, *others = sys.path or [""]
    chosen = others if os.path.realpath(first) == current else [first, *others]
    return list(dict.fromkeys(place for place in chosen if os.path.isabs(place)))  # noqa: PTH117
