"""Which send belongs to which receive, for arrows between them.

The ends of one direction are counted on both sides, from the first one on. So there are arrows only between ranks
whose records hold everything from the beginning: a ring buffer that has wrapped forgets how many there were.
"""

from __future__ import annotations

from ddx_tools.analysis.collectives.records.records import Records
from ddx_tools.analysis.collectives.records.transfers import ends_of
from ddx_tools.flight_records.intervals import Interval


class Arrows:
    """Numbers of arrows, which both their ends find independently."""

    def __init__(self, records: Records) -> None:
        self._groups = records.groups
        self._peers = {
            row["call"]: row["peer"]
            for row in records.query("SELECT call, peer FROM fr_calls WHERE is_p2p AND peer IS NOT NULL")
        }
        self._first: dict[tuple[int, int, int], int] = {}
        self._count: dict[tuple[int, int, int], int] = {}
        self._seen: dict[tuple[int, int, int], int] = {}
        self._rank: int | None = None
        whole = {rank for rank, each in records.ranks.items() if not (each.wrapped or each.only_active)}
        number = 1
        for direction, ends in sorted(self._directions(records).items()):
            if ends.keys() >= set(direction[1:]) and set(direction[1:]) <= whole:
                self._first[direction] = number
                self._count[direction] = min(ends.values())
                number += self._count[direction]

    def ends(self, group_id: int, call: int) -> tuple[int, int] | None:
        """Global ranks of source and target of a call; None if it is no transfer or the record does not say."""
        return ends_of(self._groups[group_id].members, self._peers.get(call))

    def number(self, each: Interval) -> tuple[int, bool] | None:
        """The arrow at an operation, and whether it begins there. To be asked in the order of each rank's calls."""
        ends = self.ends(each.group_id, each.call)
        if ends is None or ends[0] == ends[1]:
            return None
        direction = (each.group_id, *ends)
        if direction not in self._first:
            return None
        if each.rank != self._rank:
            self._rank, self._seen = each.rank, {}
        place = self._seen.get(direction, 0)
        self._seen[direction] = place + 1
        return (self._first[direction] + place, each.rank == ends[0]) if place < self._count[direction] else None

    def _directions(self, records: Records) -> dict[tuple[int, int, int], dict[int, int]]:
        """{(group, source, target): {rank: how many ends it recorded}}."""
        found: dict[tuple[int, int, int], dict[int, int]] = {}
        for row in records.query(
            "SELECT group_id, call, rank, count(*) AS times FROM recorded_numbers "
            "SEMI JOIN (SELECT call FROM fr_calls WHERE is_p2p) USING (call) GROUP BY ALL"
        ):
            ends = self.ends(row["group_id"], row["call"])
            if ends is not None and row["rank"] in ends:
                counts = found.setdefault((row["group_id"], *ends), {})
                counts[row["rank"]] = counts.get(row["rank"], 0) + row["times"]
        return found
