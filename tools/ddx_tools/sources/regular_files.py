"""Opens files safely even if others swap them meanwhile, for a pipe that blocks forever or for another user's file."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from io import FileIO
from pathlib import Path

from ddx_tools.model.errors import NotFound, NotPermitted


def open_regular(path: Path, below: Sequence[Path] = ()) -> FileIO:
    """Open a regular file for reading, unbuffered. Raises OSError, or NotFound if it is not a regular file.

    With `below`, raises NotPermitted for a file outside these directories; this checks the file actually opened, not
    where a link leads at another moment.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # opening a device can have side effects
        raise NotFound(f"{path}: not a regular file", "")
    opened = FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "r")
    try:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise NotFound(f"{path}: not a regular file", "")
        if below and not any(_place(opened, path).is_relative_to(folder) for folder in below):
            raise NotPermitted(f"{path}: a link that leads outside what this server may read", "")
    except BaseException:
        opened.close()
        raise
    return opened


def _place(opened: FileIO, path: Path) -> Path:
    try:
        return Path(f"/proc/self/fd/{opened.fileno()}").readlink()
    except OSError:  # not Linux
        return path.resolve()
