"""Sets aside core files of other processes: an earlier run's core may lie in the same directory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from ddx_tools.analysis.log_events.log_event import LogEvent


def without_strangers(events: list[LogEvent], processes: Iterable[dict[str, Any]]) -> list[LogEvent]:
    """Return the events without those of cores whose pid contradicts the pids that logs and processes give.

    `processes`: rows of the `ranks` table. A core of unknown rank must have a known pid, if any pid is known; a core of
    a known rank must have a pid of that rank, if one is known.
    """
    pids: dict[int | None, set[int]] = defaultdict(set)
    others = [event.row for event in events if not event.details.get("core")]
    for row in (*others, *processes):
        if row["pid"] is not None:
            pids[row["rank"]].add(row["pid"])
    everybody = set().union(*pids.values())

    def is_strange(event: LogEvent) -> bool:
        pid, rank = event.row["pid"], event.row["rank"]
        known = everybody if rank is None else pids.get(rank, set())
        return bool(event.details.get("core") and pid is not None and known and pid not in known)

    return [event for event in events if not is_strange(event)]
