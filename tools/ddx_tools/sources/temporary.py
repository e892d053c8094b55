"""Temporary evidence, in directories named after their process, so that leftovers are found and removed."""

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
    """Is removed completely, even if a signal ends the command meanwhile."""

    def cleanup(self) -> None:
        try:
            super().cleanup()
        except BaseException:
            shutil.rmtree(self.name, ignore_errors=True)
            raise


def temporary_directory(purpose: str) -> tempfile.TemporaryDirectory[str]:
    """Create a directory (mode 0700) that is removed with its context; first removes those of killed processes.

    `purpose` is one lower-case word, for people who find the directory.
    """
    with _undisturbed():  # otherwise tempfile's test file, or a directory without an owner yet, would stay
        place = tempfile.gettempdir()
        directory = _Directory(prefix=prefix_of(purpose))
    _remove_left_behind(Path(place))
    return directory


def prefix_of(purpose: str) -> str:
    """The prefix of this process's directory names."""
    return f"ddx-{purpose}-{os.getpid()}-{_numbering()}-"


def _numbering() -> int:
    """The pid namespace: containers and hosts that share a directory number their processes separately."""
    space = ""
    with suppress(OSError):  # not Linux
        space = str(Path("/proc/self/ns/pid").readlink())
    return zlib.crc32(f"{socket.gethostname()} {space}".encode())


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Delay signals that end a command until the end of the block."""
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
                # The sticky bit keeps us from removing another user's directories.
                shutil.rmtree(entry.path, ignore_errors=True)


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # a number that no process can have: not one of our names
        return True
    except OSError:
        return False
    return False
