"""Which of two ranks left something out: one waits in a transfer, the other in a collective that the first is not in.

Either the one in the collective left out its end of the transfer, or the one in the transfer left out the collective.
How many transfers a rank has made when it comes to a collective is the same for all that have its place in the program:
the ranks of the same place in other groups of the kind, or the other members where there is one group only. Where there
are none, its own rounds before tell, if they are all alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from ddx_tools.alignment.group_names import kind_of
from ddx_tools.alignment.records import Group, Records
from ddx_tools.alignment.waits import Hold

_ROUNDS = 6
"""Rounds of the past that are looked at."""


def odd_by_rounds(records: Records, holds: Sequence[Hold]) -> set[int]:
    """The rank of a circle that made fewer or more transfers than usual; empty if that is neither or both."""
    lonely = [hold for hold in holds if hold.transfer is not None and hold.lacking]
    if records.only_active or len({rank for hold in lonely for rank in (*hold.lacking, *hold.waiting)}) != 2:
        return set()
    (inside,), (lacking,) = lonely[0].waiting, lonely[0].lacking
    awaiting = [hold for hold in holds if hold.transfer is None and hold.seq and lacking in hold.waiting]
    if len(awaiting) != 1 or inside not in awaiting[0].blockers:
        return set()
    made = _transfers_made(records, awaiting[0], lonely[0].group)
    odd = set()
    if _compared(records, made, lonely[0].group, lacking, inside) < 0:
        odd.add(lacking)
    if _compared(records, made, lonely[0].group, inside, lacking) > 0:
        odd.add(inside)
    return odd if len(odd) == 1 else set()


_Made = dict[int, list[int]]
"""By rank: how many transfers it had made at each of the last collectives; the last one is the one that hangs."""


def _transfers_made(records: Records, collective: Hold, transfers: Group) -> _Made:
    """Of all ranks of groups of one kind. Who has not come to the collective counts as far as it came."""
    alike = [group.id for group in records.groups.values() if kind_of(group) == kind_of(transfers)]
    listed = ", ".join(map(str, alike))
    seq = collective.seq or 0
    rows = records.query(
        "WITH calls AS (SELECT rank, seq, min(record_id) AS at FROM recorded_numbers JOIN rules USING (call) "
        "WHERE group_id = ? AND NOT is_p2p AND NOT closing AND seq BETWEEN ? AND ? GROUP BY rank, seq), "
        "ends AS (SELECT * FROM calls UNION ALL "
        "SELECT DISTINCT rank, CAST(? AS BIGINT), 9223372036854775807 FROM recorded_numbers "
        "WHERE rank NOT IN (SELECT rank FROM calls WHERE seq = ?)) "
        "SELECT e.rank, e.seq, max(t.p2p_seq) AS made FROM ends e JOIN recorded_numbers t "
        f"ON t.rank = e.rank AND t.record_id < e.at AND t.group_id IN ({listed}) GROUP BY e.rank, e.seq ORDER BY ALL",
        [collective.group.id, seq - _ROUNDS, seq, seq, seq],
    )
    made: _Made = {}
    for row in rows:
        made.setdefault(row["rank"], []).append(row["made"])
    return made


def _compared(records: Records, made: _Made, group: Group, rank: int, other: int) -> int:
    """How many transfers more (or fewer, below 0) than usual a rank has made; 0 if nothing tells."""
    mine = made.get(rank)
    if not mine:
        return 0
    place = group.ranks().index(rank)
    alike = [each for each in records.groups.values() if kind_of(each) == kind_of(group) and each.id != group.id]
    peers = [each.ranks()[place] for each in alike if len(each.ranks()) > place]
    peers = peers or [member for member in group.ranks() if member not in (rank, other)]
    counts = Counter(made[peer][-1] for peer in peers if peer in made)
    if counts and 2 * counts.most_common(1)[0][1] > counts.total():
        return mine[-1] - counts.most_common(1)[0][0]
    steps = [after - before for before, after in pairwise(mine)]
    return steps[-1] - steps[0] if len(steps) > 2 and len(set(steps[:-1])) == 1 else 0
