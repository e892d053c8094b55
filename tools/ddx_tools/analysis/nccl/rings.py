"""The rings of communicators, according to NCCL's log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddx_tools.analysis.nccl.process_rows import Row
from ddx_tools.evidence.store import Store
from ddx_tools.model.grouping import gathered


@dataclass(frozen=True)
class Ring:
    """One ring of a communicator."""

    channel: int
    ranks: tuple[int, ...]
    row: Row

    @property
    def neighbours(self) -> list[tuple[int, int]]:
        """Each rank with the one that it sends to."""
        return list(zip(self.ranks, (*self.ranks[1:], self.ranks[0]), strict=True))

    def crossings(self, hosts: Mapping[int, str]) -> list[tuple[int, int]] | None:
        """Return the neighbours in the ring that are on different hosts; None if a rank's host is unknown."""
        if any(rank not in hosts for rank in self.ranks):
            return None
        return [(one, other) for one, other in self.neighbours if hosts[one] != hosts[other]]


def rings_of(store: Store) -> dict[str, list[Ring]]:
    """Return the complete rings of each communicator by channel, printed whole by one rank or assembled from all
    ranks."""
    rows = store.query(
        "SELECT * FROM nccl_graphs WHERE kind IN ('ring', 'ring_part') AND channel IS NOT NULL "
        "AND communicator IS NOT NULL ORDER BY communicator, channel, kind, source, source_line"
    )
    found: dict[str, dict[int, Ring]] = {}
    parts = gathered(((row["communicator"], row["channel"]), row) for row in rows if row["kind"] == "ring_part")
    for row in rows:
        if row["kind"] == "ring":
            ranks = tuple(int(rank) for rank in row["graph"].split())
            if len(set(ranks)) == len(ranks) > 1:
                found.setdefault(row["communicator"], {}).setdefault(row["channel"], Ring(row["channel"], ranks, row))
    for (communicator, channel), together in parts.items():
        if channel not in found.get(communicator, {}) and (ring := _put_together(channel, together)):
            found.setdefault(communicator, {})[channel] = ring
    return {name: [rings[channel] for channel in sorted(rings)] for name, rings in found.items()}


def _put_together(channel: int, rows: Sequence[Row]) -> Ring | None:
    """The ring assembled from each rank's successor; None unless it closes."""
    behind = {}
    for row in rows:
        _, rank, following = (int(word) for word in row["graph"].split())
        behind[rank] = following
    start = at = min(behind)
    ranks = [start]
    while (at := behind.get(at, -1)) != start:
        if at < 0 or len(ranks) > len(behind):
            return None
        ranks.append(at)
    return Ring(channel, tuple(ranks), rows[0]) if len(ranks) == len(behind) > 1 else None
