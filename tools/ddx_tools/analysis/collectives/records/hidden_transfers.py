"""Sends and receives that Gloo does not record, by the count that it keeps of them.

`op_id` counts all operations of a group, `collective_seq_id` its collectives: the difference is how many transfers a
rank made. A rank with nothing pending may stand in one of them. Then its peer did not do its part, and made fewer (or
more) than the ranks of the same place in other groups of the kind. If each peer is in a collective of that group, where
the count is told, and none deviates, nothing hidden can hold the rank. Nor if several peers made as many each since the
last collective that the rank was in with them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ddx_tools.analysis.collectives.records.patience import SETTLED_S
from ddx_tools.analysis.collectives.records.records import Group, Records
from ddx_tools.analysis.collectives.records.shown import kind_of

_ENOUGH = 3
"""Peers of which at least one has nothing to do with the rank, nor with the peer that would have left one out."""


def may_be_in_transfer(records: Records, rank: int) -> bool:
    """Whether a rank of a backend that hides transfers may stand in one."""
    counts = _counts(records)
    for group in records.groups.values():
        members = group.ranks()
        if rank in members and any(made for (group_id, *_), made in counts.items() if group_id == group.id):
            peers = [place for place, member in enumerate(members) if member != rank]
            if _alike_since(counts, group, rank):
                continue
            if not all(members[place] in group.pending and _as_usual(records, counts, group, place) for place in peers):
                return True
    return False


def long_silent(records: Records, ranks: Collection[int]) -> list[int]:
    """Those of some ranks that have called nothing for clearly longer than ever before, or of which nothing tells."""
    calls = {row["rank"]: row for row in records.query(_CALLS)} if ranks else {}

    def is_silent(rank: int) -> bool:
        taken_ns, row = records.ranks[rank].taken_ns, calls.get(rank)
        if taken_ns is None or row is None or row["longest"] is None:
            return True
        return bool(taken_ns - row["last"] >= max(SETTLED_S * 1e9, 2 * row["longest"]))

    return [rank for rank in ranks if is_silent(rank)]


_CALLS = """
SELECT rank, max(created_ns) AS last, max(created_ns - before) AS longest FROM (
    SELECT rank, created_ns, lag(created_ns) OVER (PARTITION BY rank ORDER BY record_id) AS before FROM recorded_numbers
) GROUP BY rank
"""

_Counts = dict[tuple[int, int, int], int]
"""Transfers made, by (group, rank, sequence number of the collective that was called then)."""


def _counts(records: Records) -> _Counts:
    rows = records.query(
        "SELECT DISTINCT group_id, rank, seq, op_id - seq AS made FROM recorded_numbers JOIN ("
        "SELECT group_id, min(last) AS common FROM (SELECT group_id, rank, max(seq) AS last FROM recorded_numbers "
        "GROUP BY group_id, rank) GROUP BY group_id) USING (group_id) WHERE op_id IS NOT NULL AND seq >= common"
    )
    return {(row["group_id"], row["rank"], row["seq"]): row["made"] for row in rows}


def _alike_since(counts: _Counts, group: Group, rank: int) -> bool:
    """Whether all peers made as many between the rank's last collective and the one that all of them are in."""
    position = group.positions.get(rank)
    last = None if position is None else position.last_recorded
    peers = [member for member in group.ranks() if member != rank]
    if last is None or len(peers) < _ENOUGH or not group.pending.keys() >= set(peers):
        return False
    made = set()
    for peer in peers:
        before, after = counts.get((group.id, peer, last)), counts.get((group.id, peer, group.pending[peer].seq))
        if before is None or after is None:
            return False
        made.add(after - before)
    return len(made) == 1


def _as_usual(records: Records, counts: _Counts, group: Group, place: int) -> bool:
    """Whether a member made as many transfers as all others of its place, when it called its last collective."""
    rank = group.ranks()[place]
    last = max((seq for group_id, member, seq in counts if (group_id, member) == (group.id, rank)), default=None)
    if last is None:
        return False
    alike = {counts.get((other.id, other.ranks()[place], last)) for other in _others(records, group)} - {None}
    return alike == {counts[group.id, rank, last]}


def _others(records: Records, group: Group) -> Iterable[Group]:
    size = len(group.ranks())
    return (
        other
        for other in records.groups.values()
        if other.id != group.id and kind_of(other) == kind_of(group) and len(other.ranks()) == size
    )
