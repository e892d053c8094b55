"""Established TCP connections of single processes.

psutil reads the kernel's whole connection table once for every process, some 15 ms each; here it is read once
for every network namespace. Format of /proc/net/tcp: Documentation/networking/proc_net_tcp in the kernel.
"""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

_MAX_CONNECTIONS = 256
_ESTABLISHED = "01"

Ports = tuple[int, int]
"""Local and remote port."""


class TcpConnections:
    """Answers for many processes at one moment."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, Ports]] = {}
        """By network namespace: ports by socket inode."""

    def of(self, pid: int) -> list[Ports]:
        """The connections of a process, sorted. Raises OSError or psutil.Error if it may not be asked."""
        found = self._linux(pid) if sys.platform == "linux" else _portable(pid)
        return sorted(found)[:_MAX_CONNECTIONS]

    def _linux(self, pid: int) -> list[Ports]:
        process = Path(f"/proc/{pid}")
        sockets = [link[8:-1] for link in _links(process / "fd") if link.startswith("socket:[")]
        if not sockets:
            return []
        namespace = str((process / "ns" / "net").readlink())
        if namespace not in self._tables:
            self._tables[namespace] = _established(process / "net")
        table = self._tables[namespace]
        return [table[inode] for inode in sockets if inode in table]


def _links(directory: Path) -> list[str]:
    links = []
    for entry in directory.iterdir():
        try:
            links.append(str(entry.readlink()))
        except OSError:  # closed meanwhile
            continue
    return links


def _established(net: Path) -> dict[str, Ports]:
    table: dict[str, Ports] = {}
    for name in ("tcp", "tcp6"):
        try:
            lines = (net / name).read_text(encoding="ascii").splitlines()[1:]
        except OSError:  # a kernel without IPv6
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _ESTABLISHED:
                table[fields[9]] = _port(fields[1]), _port(fields[2])
    return table


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def _portable(pid: int) -> list[Ports]:
    connections = psutil.Process(pid).net_connections(kind="tcp")
    return [(c.laddr.port, c.raddr.port) for c in connections if c.status == psutil.CONN_ESTABLISHED and c.raddr]
