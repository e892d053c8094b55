"""Passes the job's output through at once, byte for byte, and keeps a copy in the run's directory.

The job sees what it would see without us: a terminal (a pty of the same size) if our own output is one, otherwise a
pipe; and a single channel if our two streams lead to the same place.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import stat
import struct
import termios
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

_CHUNK_BYTES = 1 << 16
_SEGMENT_BYTES = 64 << 20
_POLL_MS = 100
_DRAIN_SECONDS = 2.0


class LauncherLog:
    """The copy of the output: at most two segments of 64 MiB, always with the end; a full disk stops only the copy."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb", buffering=0)
        self._written = 0
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        """Append output of the job to the log file; if it cannot be written, the data is dropped silently.

        Beyond 64 MiB the file is renamed to `.1.log`, replacing an older one, and a new file begins.
        """
        with self._lock:
            try:
                if self._written > _SEGMENT_BYTES:
                    self._file.close()
                    self.path.rename(self.path.with_suffix(".1.log"))
                    self._file = self.path.open("wb", buffering=0)
                    self._written = 0
                self._written += self._file.write(data)
            except (OSError, ValueError):
                return

    def close(self) -> None:
        """Close the copy."""
        with self._lock:
            self._file.close()


@dataclass
class Channel:
    """One output path of the job: it writes to `inner`, we read `outer` and write to our descriptor `ours`."""

    ours: int
    outer: int
    inner: int
    is_terminal: bool
    streams: list[int] = field(default_factory=list)
    """The job's descriptors (1, 2) that this channel carries."""
    turn: threading.Lock = field(default_factory=threading.Lock)
    """The lock for writing to `ours`."""
    in_line: bool = False
    """Whether the job's last line is still incomplete."""

    def write(self, data: bytes) -> None:
        """Pass bytes that the job printed through to `ours`, the descriptor of our own output."""
        with self.turn:
            self.in_line = not data.endswith(b"\n")
            _write_all(self.ours, data)

    def say(self, text: str) -> None:
        """Print whole lines of our own between the job's lines."""
        with self.turn:
            _write_all(self.ours, (b"\n" if self.in_line else b"") + text.encode(errors="replace"))
            self.in_line = False


def open_channels() -> list[Channel]:
    """Open channels for our stdout and stderr: one if both lead to the same place; closed ones are left out."""
    channels: list[Channel] = []
    seen: dict[tuple[int, int], Channel] = {}
    for fd in (1, 2):
        try:
            status = os.fstat(fd)
        except OSError:
            continue
        place = (status.st_dev, status.st_ino)
        if place not in seen:
            seen[place] = _open(fd, status)
            channels.append(seen[place])
        seen[place].streams.append(fd)
    return channels


def _open(fd: int, status: os.stat_result) -> Channel:
    if stat.S_ISCHR(status.st_mode) and os.isatty(fd):
        outer, inner = pty.openpty()
        # Bytes pass unchanged: our own terminal processes them.
        modes = termios.tcgetattr(inner)
        modes[1] &= ~termios.OPOST
        termios.tcsetattr(inner, termios.TCSANOW, modes)
        channel = Channel(fd, outer, inner, True)
        copy_window_size([channel])
        return channel
    outer, inner = os.pipe()
    return Channel(fd, outer, inner, False)


def copy_window_size(channels: Iterable[Channel]) -> None:
    """Set the job's terminals to the size of ours."""
    for channel in channels:
        if not channel.is_terminal:
            continue
        size = fcntl.ioctl(channel.ours, termios.TIOCGWINSZ, struct.pack("4H", 0, 0, 0, 0))
        fcntl.ioctl(channel.outer, termios.TIOCSWINSZ, size)


class Pump:
    """A thread that copies one channel's bytes until the job closes it."""

    def __init__(self, channel: Channel, log: LauncherLog) -> None:
        self._channel = channel
        self._log = log
        self._deadline_s: float | None = None
        self._thread = threading.Thread(target=self._carry, name="ddx-output", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Copy what is still in the channel after the launcher's end, without waiting for processes it left behind."""
        self._deadline_s = time.monotonic() + _DRAIN_SECONDS
        self._thread.join()

    def _carry(self) -> None:
        outer = self._channel.outer
        poll = select.poll()
        poll.register(outer, select.POLLIN)
        try:
            while True:
                if not poll.poll(_POLL_MS):
                    if self._deadline_s is not None:
                        return
                    continue
                data = os.read(outer, _CHUNK_BYTES)
                if not data:
                    return
                self._log.write(data)
                self._channel.write(data)
                if self._deadline_s is not None and time.monotonic() > self._deadline_s:
                    return
        except OSError:
            # A pty ends with EIO. If our own reader is gone, closing the channel lets the job notice.
            return
        finally:
            os.close(outer)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [])
