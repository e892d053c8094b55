"""What a start worked out, kept for the next one: plain data as JSON, in the user's cache directory.

Nothing depends on it. A file that is absent, damaged, or that somebody else could have written counts as absent, and
cannot be written is not kept. Files are replaced whole, so processes that start together do not disturb one another.
They hold data alone: reading one never runs code, and whoever reads it checks it as if it came from its source.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_OLD_S = 30 * 24 * 3600.0
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def kept(sources: Iterable[str], make: Callable[[], T]) -> T:
    """What `make` returned for these texts at an earlier start, else what it returns now.

    `sources` is all that the result depends on: a text that changes by a character is a new key. What JSON does not
    give back as it was (keys that are numbers, dates) is made each time.
    """
    digest = hashlib.sha256()
    for source in sources:
        text = source.encode()
        digest.update(b"%d:%b" % (len(text), text))
    name = f"{digest.hexdigest()}.json"
    folder = _folder()
    known = _read(folder / name) if folder else None
    if known is not None:
        found: T = json.loads(known)
        return found
    made = make()
    if folder:
        with suppress(OSError, TypeError):
            content = json.dumps(made)
            if json.loads(content) == made:
                _write(folder / name, content.encode())
    return made


def _folder() -> Path | None:
    """The cache directory, made if need be; None where it is not the user's own, or cannot be made."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = (Path(named) if named.startswith("/") else Path.home() / ".cache") / "ddx"
        # With sudo, HOME may be another user's: a directory of root's there would be in that user's way.
        nearest = next(path for path in (folder, *folder.parents) if path.exists())
        if nearest.stat().st_uid != os.geteuid():
            return None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except (OSError, RuntimeError):  # RuntimeError: nobody knows a home directory
        return None
    return folder if stat.S_ISDIR(status.st_mode) and _is_own(status) else None


def _is_own(status: os.stat_result) -> bool:
    """Whether nobody but this user can have written it."""
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_MAY_WRITE


def _read(file: Path) -> bytes | None:
    """What a file holds below its first line, which is the digest of the rest; None if that is not so."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode) or not _is_own(status):
                return None
            told, _, content = opened.read().partition(b"\n")
    except OSError:
        return None
    return content if told == _digest(content) else None


def _write(file: Path, content: bytes) -> None:
    """Put a file in place, and remove those that nobody has written for long. Raises OSError."""
    import tempfile

    for old in file.parent.iterdir():
        with suppress(OSError):
            if time.time() - old.lstat().st_mtime > _OLD_S:
                old.unlink()
    handle, name = tempfile.mkstemp(dir=file.parent)
    written = Path(name)
    try:
        with open(handle, "wb") as stream:
            stream.write(_digest(content) + b"\n" + content)
        written.replace(file)
    except OSError:
        written.unlink()
        raise


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
