"""Starts this interpreter again with the same modules, for work whose process may be killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def python_argv(program: str, arguments: Sequence[str] = ()) -> list[str]:
    """The command line that runs `program` in this interpreter, with modules found where this process finds them.

    A process started with `-P` or `-I` has only the default module paths, and this one may have more, for example from
    a launcher that sets `sys.path`. Files in the current directory are not importable as modules.
    """
    # -I, if this process has it, keeps PYTHON* and the user's own packages out of its children too.
    alone = "-I" if sys.flags.isolated else "-P"
    return [sys.executable, alone, "-c", f"import sys; sys.path[:] = {_module_places()!r}; {program}", *arguments]


def _module_places() -> list[str]:
    """The absolute entries of `sys.path`, without the current directory if Python put it first (`-m`, `-c`).

    Further down it was chosen on purpose, as the root of an editable install, say.
    """
    try:
        current = os.path.realpath(os.getcwd())  # noqa: PTH109 - compared as text with entries of sys.path
    except OSError:  # it was removed
        current = ""
    first, *others = sys.path or [""]
    chosen = others if os.path.realpath(first) == current else [first, *others]
    return list(dict.fromkeys(place for place in chosen if os.path.isabs(place)))  # noqa: PTH117
