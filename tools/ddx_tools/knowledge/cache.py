"""Caches computed data between runs of ddx, as JSON in the user's cache directory.

Nothing depends on it. A file that is damaged, or that another user could have written, counts as absent; what cannot
be written is not kept. Files are replaced whole, so processes that start together do not disturb each other.
They hold only data: reading one never runs code, and its reader validates it as if it came from the source.
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
    """The cached result of `make` for these source texts, or a new one.

    `sources` is everything that the result depends on: changing a single character gives a new key. Results that JSON
    does not reproduce exactly (numeric keys, dates) are computed every time.
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
    """The cache directory, created if necessary; None if it is not the user's own or cannot be created."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = (Path(named) if named.startswith("/") else Path.home() / ".cache") / "ddx"
        # With sudo, HOME may be another user's, who could then not use a directory created by root.
        nearest = next(path for path in (folder, *folder.parents) if path.exists())
        if nearest.stat().st_uid != os.geteuid():
            return None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except (OSError, RuntimeError):  # RuntimeError: the home directory is unknown
        return None
    return folder if stat.S_ISDIR(status.st_mode) and _is_own(status) else None


def _is_own(status: os.stat_result) -> bool:
    """Whether only this user can have written the file."""
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_MAY_WRITE


def _read(file: Path) -> bytes | None:
    """Read a cache file: the content after its first line, which must be the content's digest; None if it is not."""
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
    """Write a cache file, and delete files that have not been written for long. Raises OSError."""
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
