"""Reads listening sockets from `ss -ltnp` (iproute2 4.9 to 6.x).

    LISTEN 0      2048         0.0.0.0:29500      0.0.0.0:*    users:(("python3",pid=77,fd=3))
    LISTEN 0      128             [::]:22            [::]:*

Only the owner and root see the process names. ss_text.py reads connections that hold bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LISTEN = re.compile(
    r"LISTEN\s+\d{1,9}\s+\d{1,9}\s+(?P<address>\*|\[[0-9a-fA-F:.%\w-]{0,60}\]|[\d.]{7,15}(?:%[\w.-]{1,20})?):"
    r"(?P<port>\d{1,5})\s"
)
_OWNER = re.compile(r'\("(?P<name>[^"]{1,40})",pid=(?P<pid>\d{1,10}),fd=\d{1,10}\)')
_MOST_LINES = 20_000


@dataclass(frozen=True)
class ListeningPort:
    """One listening socket."""

    address: str
    """The address; `0.0.0.0`, `::` and `*` mean all."""
    port: int
    pid: int | None
    name: str | None
    line: int
    quote: str


def read_listeners(data: bytes) -> list[ListeningPort]:
    """Return all listening sockets, in order; for a socket that several processes share, only the first process."""
    found = []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines()[:_MOST_LINES], 1):
        socket = _LISTEN.match(line)
        if socket is None or int(socket["port"]) > 0xFFFF:
            continue
        owner = _OWNER.search(line, socket.end(), socket.end() + 2_000)
        pid, name = (int(owner["pid"]), owner["name"]) if owner else (None, None)
        address = socket["address"].strip("[]")
        found.append(ListeningPort(address, int(socket["port"]), pid, name, number, line.strip()[:300]))
    return found
