"""Who called two operations of different groups in another order than everybody else.

A rank waits in one group for a peer that waits in another group for it: one of the two called the operations in the
other order. The groups of one kind (all tensor-parallel groups, say) run through the same program, so all other ranks
show the order: how many collectives of the one kind each had called when it called the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ddx_tools.alignment.group_names import kind_of
from ddx_tools.alignment.records import Group, Records
from ddx_tools.alignment.waits import Hold


def odd_by_order(records: Records, holds: Sequence[Hold]) -> set[int]:
    """The ranks of a circle of two collectives that did not follow the others' order; empty if that is unclear."""
    collectives = [hold for hold in holds if hold.transfer is None and hold.seq is not None and hold.fronts]
    if len(collectives) != 2:
        return set()
    larger, smaller = sorted(collectives, key=lambda hold: -len(hold.group.ranks()))
    if kind_of(larger.group) == kind_of(smaller.group):
        return set()
    before = _called_before(records, smaller, larger)
    suspects = {*larger.fronts, *larger.blockers} & {*smaller.fronts, *smaller.blockers}
    counts = Counter(count for rank, count in before.items() if rank not in suspects)
    if not counts:
        return set()
    usual, many = counts.most_common(1)[0]
    if 2 * many <= counts.total():
        return set()
    odd = {rank for rank in suspects if before.get(rank, usual) != usual}
    # Who has not come to the larger group's operation has called more of the smaller kind than the others before it.
    odd |= {rank for rank in suspects - before.keys() if _last_called(smaller.group, rank) > usual}
    return odd if len(odd) < len(suspects) else set()


def _called_before(records: Records, smaller: Hold, larger: Hold) -> dict[int, int]:
    """For each rank that called the larger group's operation: its last one of the smaller kind before that."""
    alike = [group.id for group in records.groups.values() if kind_of(group) == kind_of(smaller.group)]
    return {
        row["rank"]: row["seq"]
        for row in records.query(
            "SELECT n.rank, max(n.seq) AS seq FROM recorded_numbers n JOIN rules USING (call) JOIN ("
            "SELECT rank, min(record_id) AS at FROM recorded_numbers WHERE group_id = ? AND seq = ? GROUP BY rank"
            ") b ON b.rank = n.rank AND n.record_id < b.at "
            f"WHERE NOT is_p2p AND NOT closing AND n.group_id IN ({', '.join(map(str, alike))}) GROUP BY n.rank",
            [larger.group.id, larger.seq],
        )
    }


def _last_called(group: Group, rank: int) -> int:
    position = group.positions.get(rank)
    entered = None if position is None else position.entered
    return -1 if entered is None else entered
