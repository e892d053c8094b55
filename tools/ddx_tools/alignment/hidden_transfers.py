"""Sends and receives that Gloo does not record, by the count that it keeps of them.

`op_id` counts all operations of a group, `collective_seq_id` its collectives: the difference is how many transfers a
rank made. A rank with nothing pending may stand in one of them. Then its peer did not do its part, and made fewer (or
more) than the ranks of the same place in other groups of the kind. If each peer is in a collective of that group, where
the count is told, and none deviates, nothing hidden can hold the rank.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddx_tools.alignment.group_names import kind_of
from ddx_tools.alignment.records import Group, Records


def may_be_in_transfer(records: Records, rank: int) -> bool:
    """Whether a rank of a backend that hides transfers may stand in one."""
    counts = _counts(records)
    for group in records.groups.values():
        members = group.ranks()
        if rank in members and any(made for (group_id, *_), made in counts.items() if group_id == group.id):
            peers = [place for place, member in enumerate(members) if member != rank]
            if not all(members[place] in group.pending and _as_usual(records, counts, group, place) for place in peers):
                return True
    return False


_Counts = dict[tuple[int, int, int], int]
"""Transfers made, by (group, rank, sequence number of the collective that was called then)."""


def _counts(records: Records) -> _Counts:
    rows = records.query(
        "SELECT DISTINCT group_id, rank, seq, op_id - seq AS made FROM recorded_numbers JOIN ("
        "SELECT group_id, min(last) AS common FROM (SELECT group_id, rank, max(seq) AS last FROM recorded_numbers "
        "GROUP BY group_id, rank) GROUP BY group_id) USING (group_id) WHERE op_id IS NOT NULL AND seq >= common"
    )
    return {(row["group_id"], row["rank"], row["seq"]): row["made"] for row in rows}


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
