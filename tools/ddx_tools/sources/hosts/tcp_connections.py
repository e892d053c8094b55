"""Established TCP connections of single processes, and the ports that they listen on.

psutil reads the kernel's whole connection table once per process, about 15 ms each time; here it is read once per
network namespace. Format of /proc/net/tcp: Documentation/networking/proc_net_tcp in the kernel.
"""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

_MAX_CONNECTIONS = 256
_ESTABLISHED, _LISTENS = "01", "0A"

Ports = tuple[int, int]
"""Local and remote port."""


class TcpConnections:
    """The connections of many processes at one moment."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, str], dict[str, Ports]] = {}
        """For each network namespace and state, the ports by socket inode."""

    def of(self, pid: int) -> list[Ports]:
        """The connections of a process, sorted. Raises OSError or psutil.Error if access is denied."""
        found = self._linux(pid, _ESTABLISHED) if sys.platform == "linux" else _portable(pid)
        return sorted(found)[:_MAX_CONNECTIONS]

    def listens(self, pid: int) -> list[int]:
        """The ports that a process listens on, sorted (Linux only). Raises OSError if access is denied."""
        found = self._linux(pid, _LISTENS) if sys.platform == "linux" else []
        return sorted({local for local, _ in found})[:_MAX_CONNECTIONS]

    def _linux(self, pid: int, state: str) -> list[Ports]:
        process = Path(f"/proc/{pid}")
        sockets = [link[8:-1] for link in _links(process / "fd") if link.startswith("socket:[")]
        if not sockets:
            return []
        namespace = str((process / "ns" / "net").readlink())
        if (namespace, state) not in self._tables:
            self._tables[namespace, state] = _in_state(process / "net", state)
        table = self._tables[namespace, state]
        return [table[inode] for inode in sockets if inode in table]


def _links(directory: Path) -> list[str]:
    links = []
    for entry in directory.iterdir():
        try:
            links.append(str(entry.readlink()))
        except OSError:  # closed meanwhile
            continue
    return links


def _in_state(net: Path, state: str) -> dict[str, Ports]:
    table: dict[str, Ports] = {}
    for name in ("tcp", "tcp6"):
        try:
            lines = (net / name).read_text(encoding="ascii").splitlines()[1:]
        except OSError:  # a kernel without IPv6
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[3] == state:
                table[fields[9]] = _port(fields[1]), _port(fields[2])
    return table


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def _portable(pid: int) -> list[Ports]:
    connections = psutil.Process(pid).net_connections(kind="tcp")
    return [(c.laddr.port, c.raddr.port) for c in connections if c.status == psutil.CONN_ESTABLISHED and c.raddr]
