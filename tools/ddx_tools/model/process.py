"""A process of a job, as a snapshot of the host shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Process:
    """One process in a snapshot of a host."""

    pid: int
    ppid: int
    name: str
    command: str
    """Command line, with arguments joined by spaces."""
    exe: str
    state: str | None
    env: Mapping[str, str]
    readable: bool
    tcp: tuple[tuple[int, int], ...]
    """Established TCP connections, as (local port, remote port)."""
    row: Mapping[str, Any] = field(repr=False)
    """The original row of the snapshot."""

    @property
    def words(self) -> list[str]:
        """The words of its command line, program first."""
        return [str(word) for word in self.row.get("cmdline") or []]

    @property
    def is_dead(self) -> bool:
        """Whether it is a zombie: it ended, and only its entry is left until its parent reaps it."""
        return self.state in ("Z", "X")
