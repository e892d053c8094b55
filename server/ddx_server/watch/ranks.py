"""The state of one rank, from its agent's and the kernel's reports, sample after sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddx_server.run.collective_progress import JOINING, RankProgress
from ddx_tools.model.diagnosis import rank_list
from ddx_tools.sources.cluster.targets import folded

_MOVES_S = 5.0
_MOST_DOINGS = 20
_STOPPED = ("stopped", "tracing-stop")
"""Process states, as psutil names them."""


@dataclass(frozen=True)
class RankLook:
    """One sample of a rank."""

    rank: int
    pid: int
    alive: bool
    state: str = ""
    """The state of the process, as psutil names it."""
    cpu_share: float | None = None
    """The share of one processor used since the previous sample."""
    status: Mapping[str, Any] | None = None
    """The agent's answer to `status`; None if there is no agent or no answer."""
    rss_bytes: int | None = None
    gpu_bytes: int | None = None


@dataclass
class RankRow:
    """One rank while it is watched; times are in seconds on the caller's clock."""

    rank: int
    pid: int
    progress: RankProgress = field(default_factory=lambda: RankProgress(0.0))
    doing: str = ""
    """moves | waits … | outside, busy | outside, idle | stopped | gone | computes | idle"""
    age_s: float | None = None
    """Seconds since it last moved; None if unknown."""
    rss_bytes: int | None = None
    gpu_bytes: int | None = None
    host: str = ""
    """The name of its host; "" if only this host is watched."""

    def look(self, seen: RankLook, now_s: float) -> None:
        """Update the row with a sample."""
        self.rss_bytes, self.gpu_bytes = seen.rss_bytes, seen.gpu_bytes
        if seen.status is not None:
            if not self.progress.joined:
                self.progress.moved_s = now_s
            self.progress.look(seen.status, now_s)
        self.age_s = now_s - self.progress.moved_s if self.progress.joined else None
        self.doing = self._doing(seen, now_s)

    def _doing(self, seen: RankLook, now_s: float) -> str:
        if not seen.alive:
            return "gone"
        if seen.state in _STOPPED:
            return "stopped"
        busy = (seen.cpu_share or 0.0) >= 0.5
        if seen.status is None or not self.progress.joined:
            return "computes" if busy else "idle"
        if now_s - self.progress.moved_s < _MOVES_S:
            return "moves"
        if self.progress.pending:
            return (
                f"waits in {_pending(seen.status, min(self.progress.pending, key=self.progress.pending.__getitem__))}"
            )
        return f"outside, {'busy' if busy else 'idle'}"


def _pending(status: Mapping[str, Any], key: tuple[str, str]) -> str:
    """Group and sequence number of a collective; recorders number a process's groups in order of creation."""
    if key == JOINING:
        return "init_process_group"
    part, number = key
    enqueued = str(status["pg_status"][part][number].get("last_enqueued_collective"))
    groups = status.get("groups") or []
    group = groups[int(number)] if number.isdigit() and int(number) < len(groups) else {}
    if str(group.get("last_enqueued")) != enqueued:
        return f"a group, sequence {enqueued}"
    return f"{group.get('desc') or group.get('name')}, sequence {enqueued}"


def summary(rows: Sequence[RankRow]) -> str:
    """The state of all ranks in one line: `ranks 0-2 wait in default_pg, sequence 12 (31 s); rank 3 outside, idle`."""
    parts = []
    for doing, members in alike(rows):
        ages = [row.age_s for row in members if row.age_s is not None and doing != "moves"]
        since = f" ({min(ages):.0f} s)" if ages else ""
        parts.append(f"{rank_list([row.rank for row in members])}{on_hosts(members, rows)}: {doing}{since}")
    return "; ".join(parts)


def alike(rows: Sequence[RankRow]) -> list[tuple[str, list[RankRow]]]:
    """Group the rows of ranks by what they are doing; return (state, rows) pairs, smallest group first.

    If there are more than 20 states, sequence numbers are dropped from them, so that fewer remain.
    """
    by_doing: dict[str, list[RankRow]] = {}
    for row in rows:
        by_doing.setdefault(row.doing, []).append(row)
    if len(by_doing) > _MOST_DOINGS:
        by_doing = {}
        for row in rows:
            by_doing.setdefault(row.doing.partition(", sequence")[0], []).append(row)
    return sorted(by_doing.items(), key=lambda item: len(item[1]))


def on_hosts(rows: Sequence[RankRow], all_rows: Sequence[RankRow]) -> str:
    """` on node[3-4]`, the hosts of some rows; "" if it adds nothing, for one host or all of them."""
    hosts = {row.host for row in rows}
    return f" on {folded(hosts)}" if len({row.host for row in all_rows}) > len(hosts) else ""
