"""The process snapshot (see `ddx_tools.sources.hosts.processes`) as a tree that can be asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddx_tools.errors import UnreadableInput


@dataclass(frozen=True)
class Process:
    """One process of a snapshot."""

    pid: int
    ppid: int
    name: str
    command: str
    """Command line, arguments joined by blanks."""
    exe: str
    state: str | None
    env: Mapping[str, str]
    readable: bool
    tcp: tuple[tuple[int, int], ...]
    """Established connections, (local port, remote port)."""
    row: Mapping[str, Any] = field(repr=False)
    """The snapshot's own record."""

    @property
    def is_dead(self) -> bool:
        """It ended; only its entry is left, until its parent asks for it."""
        return self.state in ("Z", "X")


class ProcessTable:
    """Processes by pid, with their children."""

    def __init__(self, snapshot: Mapping[str, Any]) -> None:
        rows = snapshot.get("processes")
        if not isinstance(rows, list):
            raise UnreadableInput("not a process snapshot: it has no list of processes")
        self.host = str(snapshot.get("host") or "")
        self.now = snapshot.get("now")
        self.processes = {process.pid: process for process in map(_process, rows)}
        self._children: dict[int, list[Process]] = {}
        for process in sorted(self.processes.values(), key=lambda process: process.pid):
            self._children.setdefault(process.ppid, []).append(process)

    def get(self, pid: int) -> Process | None:
        """The process, if the snapshot has it."""
        return self.processes.get(pid)

    def is_fork(self, process: Process) -> bool:
        """It has its parent's command line: it was forked and runs no program of its own."""
        parent = self.processes.get(process.ppid)
        return bool(parent and process.command and parent.command == process.command)

    def children(self, pid: int) -> list[Process]:
        """Direct children, by pid."""
        return self._children.get(pid, [])

    def ancestors(self, process: Process) -> Iterator[Process]:
        """Parent, grandparent, … as far as the snapshot has them."""
        seen = {process.pid}
        while (parent := self.processes.get(process.ppid)) and parent.pid not in seen:
            yield parent
            seen.add(parent.pid)
            process = parent

    def descendants(self, pid: int) -> Iterator[Process]:
        """Children and theirs, parents before children."""
        waiting, seen = list(self.children(pid)), {pid}
        while waiting:
            process = waiting.pop(0)
            if process.pid not in seen:
                seen.add(process.pid)
                yield process
                waiting.extend(self.children(process.pid))


def _process(row: Any) -> Process:
    if not isinstance(row, dict) or not isinstance(row.get("pid"), int):
        raise UnreadableInput("not a process snapshot: a process has no pid")
    env = row.get("env")
    return Process(
        pid=row["pid"],
        ppid=row["ppid"] if isinstance(row.get("ppid"), int) else 0,
        name=str(row.get("name") or ""),
        command=" ".join(str(argument) for argument in row.get("cmdline") or []),
        exe=str(row.get("exe") or ""),
        state=row.get("state"),
        env={str(k): str(v) for k, v in env.items()} if isinstance(env, dict) else {},
        readable=bool(row.get("readable")),
        tcp=tuple((pair[0], pair[1]) for pair in row.get("tcp") or []),
        row=row,
    )
