"""Temporary evidence: in directories that name the process they belong to: what it left is found and removed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OURS = re.compile(r"ddx-[a-z]+-(\d{1,10})-(\d{1,20})-")


class _Directory(tempfile.TemporaryDirectory[str]):
    """Goes as a whole, also where a signal ends the command while it goes."""

    def cleanup(self) -> None:
        try:
            super().cleanup()
        except BaseException:
            shutil.rmtree(self.name, ignore_errors=True)
            raise


def temporary_directory(purpose: str) -> tempfile.TemporaryDirectory[str]:
    """A directory (mode 0700) that goes with its context; those of processes that were killed are removed first.

    `purpose`: one word in small letters, for whoever finds it.
    """
    with _undisturbed():  # what tempfile tries out, and a directory that nobody owns yet, would stay
        place = tempfile.gettempdir()
        directory = _Directory(prefix=prefix_of(purpose))
    _remove_left_behind(Path(place))
    return directory


def prefix_of(purpose: str) -> str:
    """What the name of a directory of this process begins with."""
    return f"ddx-{purpose}-{os.getpid()}-{_numbering()}-"


def _numbering() -> int:
    """Among whom a pid means anything: containers and hosts that share a directory count their processes apart."""
    space = ""
    with suppress(OSError):  # not Linux
        space = str(Path("/proc/self/ns/pid").readlink())
    return zlib.crc32(f"{socket.gethostname()} {space}".encode())


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals that end a command wait until then."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _remove_left_behind(place: Path) -> None:
    here = _numbering()
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            owner = _OURS.match(entry.name)
            is_here = owner and int(owner[2]) == here
            if owner and is_here and _is_gone(int(owner[1])) and entry.is_dir(follow_symlinks=False):
                # Of another user's, the sticky directory keeps us from removing anything.
                shutil.rmtree(entry.path, ignore_errors=True)


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # a number that no process can have: somebody else's idea of a name
        return True
    except OSError:
        return False
    return False
