"""Reads /proc/locks: which process waits for a lock on a file, and which holds it.

    1: FLOCK  ADVISORY  WRITE 4711 fd:00:1312 0 EOF
    1: -> FLOCK  ADVISORY  WRITE 4712 fd:00:1312 0 EOF

A line with an arrow is a process that waits for the lock above it. Source: fs/locks.c of Linux 4.18 to 6.18.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(
    r"(?P<number>\d{1,9}):\s+(?P<waits>(?:->\s*)*)(?P<kind>[A-Z]{3,8})\s+\w{1,12}\s+[A-Z]{2,6}\s+(?P<pid>-?\d{1,10})"
    r"\s+(?P<file>[0-9a-f]{2,4}:[0-9a-f]{2,5}:\d{1,20})"
)
_MOST_LINES = 20_000


@dataclass(frozen=True)
class LockWait:
    """A process that waits for a lock on a file."""

    waiter_pid: int
    holder_pid: int
    file: str
    """The file, as `MAJOR:MINOR:INODE`."""
    line: int
    """The line of the waiting process, from 1."""
    quote: str


def parse_file_locks(text: str) -> list[LockWait]:
    """Return the lock waits in /proc/locks, without processes of other PID namespaces, which it numbers 0."""
    holders: dict[str, int] = {}
    found = []
    for number, line in enumerate(text.splitlines()[:_MOST_LINES], 1):
        parts = _LINE.match(line)
        if parts is None:
            continue
        pid = int(parts["pid"])
        if not parts["waits"]:
            holders[parts["number"]] = pid
        elif pid > 0 and holders.get(parts["number"], 0) > 0:
            found.append(LockWait(pid, holders[parts["number"]], parts["file"], number, line.strip()[:200]))
    return found
