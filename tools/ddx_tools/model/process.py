"""A process of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
    def words(self) -> list[str]:
        """The arguments of its command line, the program first."""
        return [str(word) for word in self.row.get("cmdline") or []]

    @property
    def is_dead(self) -> bool:
        """It ended; only its entry is left until its parent reaps it."""
        return self.state in ("Z", "X")
