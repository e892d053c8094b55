"""Errors that are the fault of neither ddx nor the job: a full disk, a quota, a file system that cannot be written."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

from ddx_tools.model.errors import DdxError

_NO_ROOM = {errno.ENOSPC: "no space is left", errno.EDQUOT: "the quota is used up", errno.EFBIG: "a file is too large"}
_OTHERS = {
    errno.EROFS: "it is read-only",
    errno.EIO: "the device reports an error",
    errno.EMFILE: "too many files are open (ulimit -n)",
    errno.ENFILE: "too many files are open on this machine",
    errno.ENOMEM: "out of memory",
}
_IN_WORDS = {
    "no space left on device": errno.ENOSPC,
    "disk quota exceeded": errno.EDQUOT,
    "file too large": errno.EFBIG,
}
"""Messages of library errors that carry no error number."""


class OutputNotWritten(DdxError):
    """Standard output can no longer be written."""

    def __init__(self, error: OSError) -> None:
        reason = (error.strerror or str(error)).lower()
        super().__init__(
            f"the output could not be written: {reason}", "Redirect it to a disk with free space, or to a pipe."
        )


def lack_of_the_machine(error: BaseException) -> DdxError | None:
    """The DdxError (exit code 2) that reports an error caused by the machine; None for any other error."""
    number = _number(error)
    if number in _NO_ROOM or number in _OTHERS:
        reason = {**_NO_ROOM, **_OTHERS}[number]
        where = _place_of(error)
        return DdxError(f"ddx had to stop: {reason}{f' ({where})' if where else ''}", _help(number))
    return None


def _number(error: BaseException) -> int:
    if isinstance(error, OSError):
        return error.errno or 0
    text = str(error).lower()
    return next((number for words, number in _IN_WORDS.items() if words in text), 0)


def _place_of(error: BaseException) -> str:
    named = getattr(error, "filename", None)
    return os.fsdecode(named) if isinstance(named, str | bytes) else ""


def _help(number: int) -> str:
    if number not in _NO_ROOM:
        return "Nothing in the job was changed. Try again once that is fixed."
    place = Path(tempfile.gettempdir())
    free_mib = shutil.disk_usage(place).free >> 20
    return (
        f"ddx stores what it reads in {place} ({free_mib} MiB free) while it runs. Free space there, or set another "
        "place: TMPDIR=/path ddx …; write bundles to a disk with free space."
    )
