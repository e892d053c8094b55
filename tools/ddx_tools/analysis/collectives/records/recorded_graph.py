"""What flight records know beside the waits: in what state a rank is, and which ranks without a record are to blame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set

from ddx_tools.analysis.collectives.raising import State
from ddx_tools.analysis.collectives.records.circles import odd_of_circle
from ddx_tools.analysis.collectives.records.comparable import hides_disagreement
from ddx_tools.analysis.collectives.records.fronts import Fronts
from ddx_tools.analysis.collectives.records.records import Records
from ddx_tools.analysis.collectives.records.waits import Recorded
from ddx_tools.analysis.collectives.waiting import Graph, Known, graph_of

_SMALLEST_HOST = 4
_STATES: dict[str, State] = {
    "idle": "outside",
    "not_started": "device_behind",
    "finished_by_peers": "stands_still",
    "unseen": "unseen",
}


def recorded_graph(
    records: Records, fronts: Fronts, holds: Sequence[Recorded], deviating: Set[int]
) -> Graph[Recorded] | None:
    """The graph behind the waits of flight records; None if nobody waits for anybody."""

    def state(rank: int) -> State | None:
        return "elsewhere" if rank in deviating else _STATES.get(fronts.status[rank])

    def silent(unexplained: list[Recorded]) -> tuple[list[int], bool]:
        ranks, tie = _silent(records, unexplained)
        # A rank that is gone keeps nobody in an operation that all members are in.
        return ranks, tie or any(hold.is_complete and hold.transfer is None for hold in holds)

    return graph_of(holds, Known(state, silent, lambda circle: odd_of_circle(records, circle, holds)))


def _silent(records: Records, holds: Sequence[Recorded]) -> tuple[list[int], bool]:
    """The fewest ranks without a record that explain waits which no record does, and whether others would do."""
    silent = {
        rank for group in records.groups.values() for rank in group.members or () if rank not in records.ranks
    } | {rank for rank in range(records.world_size or 0) if rank not in records.ranks}
    found = {hold.unknown[0] for hold in holds if len(hold.unknown) == 1}
    rest = [hold for hold in holds if not found & set(hold.unknown)]
    tie = False
    while rest:
        counts = Counter(rank for hold in rest for rank in hold.unknown)
        most = max(counts.values())
        best = {rank for rank, count in counts.items() if count == most}
        tie = tie or len(best) > 1
        found |= best
        rest = [hold for hold in rest if not found & set(hold.unknown)]
    if found and may_be_a_host(silent):
        return sorted(silent), False
    # Others that left none either, and are not to blame, show that records got lost: that one is missing says little.
    # Nor do several ranks die at once, unless a host does. And where all are in one operation, all may be in it.
    in_one = {(hold.group.id, hold.seq) for hold in holds}
    unsaid = len(in_one) == 1 and hides_disagreement(holds[0].op)
    # Of a single record nobody knows whether others were looked for.
    lone = len(records.ranks) == 1
    # What ranks only called ahead of what they are in, which their rings have lost, others may have called as well.
    ahead = not any(hold.fronts for hold in holds)
    return sorted(found), tie or lone or ahead or found != silent or len(found) > 1 or unsaid


def may_be_a_host(ranks: Set[int]) -> bool:
    """Whether these may be all ranks of one host: so many in a row, beginning at a multiple of their number."""
    first, count = min(ranks), len(ranks)
    return count >= _SMALLEST_HOST and max(ranks) == first + count - 1 and first % count == 0
