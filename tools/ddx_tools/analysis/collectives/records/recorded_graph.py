"""What flight records show apart from the waits: each rank's state, and which ranks without a record are to blame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from itertools import pairwise

from ddx_tools.analysis.collectives.findings import State
from ddx_tools.analysis.collectives.records.comparable import hides_disagreement
from ddx_tools.analysis.collectives.records.device_positions import Fronts
from ddx_tools.analysis.collectives.records.quotes import kind_of
from ddx_tools.analysis.collectives.records.records import Group, Records
from ddx_tools.analysis.collectives.records.waits import Recorded
from ddx_tools.analysis.collectives.wait_solver import By, Known, SolvedWaits, fewest, graph_of
from ddx_tools.model.grouping import gathered

_SMALLEST_HOST = 4
_USUAL_HOST = 8
_STATES: dict[str, State] = {
    "idle": "outside",
    "not_started": "device_behind",
    "finished_by_peers": "stands_still",
    "unseen": "unseen",
}


def recorded_graph(
    records: Records, fronts: Fronts, holds: Sequence[Recorded], deviating: Set[int]
) -> SolvedWaits[Recorded] | None:
    """The wait graph of flight records, solved for its roots; None if no rank waits for another."""

    def state(rank: int) -> State | None:
        return "elsewhere" if rank in deviating else _STATES.get(fronts.status[rank])

    def silent(unexplained: list[Recorded]) -> tuple[list[int], bool]:
        ranks, tie = _silent(records, unexplained)
        # A missing rank cannot block an operation that all members are in.
        return ranks, tie or any(hold.is_complete and hold.transfer is None for hold in holds)

    return graph_of(holds, Known(state, silent, lambda circle: odd_of_circle(records, circle, holds)))


def _silent(records: Records, holds: Sequence[Recorded]) -> tuple[list[int], bool]:
    """The fewest ranks without a record that explain the waits no record explains, and whether others also would."""
    found = {hold.unknown[0] for hold in holds if len(hold.unknown) == 1}
    rest = [hold for hold in holds if not found & set(hold.unknown)]
    more, tie = fewest(set(hold.unknown) for hold in rest)
    found |= more
    if found and (host := _absent_host(records.absent, holds)):
        return sorted(host), False
    # Innocent ranks without a record show that records got lost, so a missing record says little. Several ranks do not
    # die at once unless their host does. And if all waiting ranks are in one operation, the absent ones may be as well.
    in_one = {(hold.group.id, hold.seq) for hold in holds}
    unsaid = len(in_one) == 1 and hides_disagreement(holds[0].op)
    # With a single record, it is unknown whether anyone looked for others.
    lone = len(records.ranks) == 1
    # If ranks only called an operation ahead, and their rings lost what they are in, others may have called it as well.
    ahead = not any(hold.fronts for hold in holds)
    return sorted(found), tie or lone or ahead or found != records.absent or len(found) > 1 or unsaid


def _absent_host(absent: Set[int], holds: Sequence[Recorded]) -> Set[int]:
    """The absent ranks that may make up one host and explain all waits; empty if no such host, or several, exist.

    A record that got lost independently belongs to one of a few ranks that do not make up a host.
    """
    if may_be_a_host(absent):
        return absent
    rows = [{*range(first, first + _USUAL_HOST)} for first in absent if first % _USUAL_HOST == 0]
    awaited = [frozenset(hold.unknown) for hold in holds]
    fitting = [row for row in rows if row <= absent and not any(row.isdisjoint(ranks) for ranks in awaited)]
    return fitting[0] if len(fitting) == 1 else frozenset()


def may_be_a_host(ranks: Set[int]) -> bool:
    """Whether these may be all ranks of one host: consecutive, and starting at a multiple of their number."""
    first, count = min(ranks), len(ranks)
    return count >= _SMALLEST_HOST and max(ranks) == first + count - 1 and first % count == 0


# --- which rank deviates among ranks that wait for each other in a circle
# Each operation of the circle splits the ranks into those in it and those not in it. If a few are missing where many
# are, and wait for more ranks than they are, the few left the program's path: they deviate. If both sides are equally
# large, no rank is singled out.
# If one rank waits in a transfer and another in a collective that the first is not in, one of them skipped a call. The
# number of transfers made before a collective is the same for all ranks with the same position in the program: those
# in the same position of similar groups, or the other members if there is only one group. If there are none, the
# rank's own earlier rounds decide, provided that they are all the same.
# If a rank waits in one group for a peer that waits for it in another group, one of the two called the operations in
# the wrong order. Groups of one kind (all tensor-parallel groups, say) run the same program, so all other ranks show
# the order: how many collectives of one kind each had called when it called the other.


def odd_of_circle(records: Records, circle: Set[int], holds: Sequence[Recorded]) -> tuple[set[int], By]:
    """The deviating ranks of a circle (empty if none is singled out), and which criterion singles them out.

    The criteria: pairing of sends and receives, absence from where many are, the call order that others follow, or two
    calls in a row that nobody else makes.
    """
    inside = [hold for hold in holds if circle & hold.waiting.keys() and circle & set(hold.blockers)]
    if len(odd := _misdirected(circle, holds) & circle) == 1:
        return odd, "pairing"
    # A rank that waits for a transfer which a peer left out is absent, too, where all others are.
    # Where all send first, each of them is in the way of the others, whoever changed its program.
    transfers = [hold.transfer for hold in inside if hold.transfer is not None]
    all_send = len(transfers) == len(inside) and all(each.rank == each.source for each in transfers)
    if transfers and not all_send and (odd := {*records.off_path} & circle):
        return odd, "path"
    absent = {frozenset((*hold.blockers, *hold.unknown)) for hold in inside if hold.transfer is None}
    fitting = [few for few in absent if few <= circle and _are_odd(few, circle, inside)]
    fewest = min(map(len, fitting), default=0)
    smallest = [few for few in fitting if len(few) == fewest]
    if len(smallest) == 1 and not _others_alike(smallest[0], inside):
        return _without_held(set(smallest[0]), inside), "absence"
    if odd := odd_by_rounds(records, inside) or odd_by_siblings(records, inside) & circle:
        return odd, "pairing"
    if odd := odd_by_order(records, inside) & circle:
        return odd, "order"
    odd = {*records.off_path_together} & circle if not transfers else set()
    return odd, "path" if odd else "nothing"


def _without_held(few: set[int], holds: Sequence[Recorded]) -> set[int]:
    """Drop the ranks that wait only for others in the same set."""
    blockers: dict[int, set[int]] = {rank: set() for rank in few}
    for hold in holds:
        for rank in few & hold.waiting.keys():
            blockers[rank].update(hold.blockers)
    return {rank for rank in few if not blockers[rank] <= few} or few


def _others_alike(few: Set[int], holds: Sequence[Recorded]) -> bool:
    """Whether other ranks in the same place are also missing from the same operation in similar groups."""
    beside = {rank for hold in holds if few & hold.waiting.keys() for rank in hold.waiting} - few
    missed = {(kind_of(hold.group), hold.op) for hold in holds if set(hold.blockers) == few}
    return any(beside & set(hold.blockers) for hold in holds if (kind_of(hold.group), hold.op) in missed)


def _are_odd(few: Set[int], circle: Set[int], holds: Sequence[Recorded]) -> bool:
    """Whether all other ranks wait for these, directly or indirectly, and these wait for more ranks than they are."""
    waiting = {rank for hold in holds if set(hold.blockers) == few for rank in hold.waiting}
    awaited = {rank for hold in holds if few & hold.waiting.keys() for rank in hold.blockers} - few
    if len(waiting - few) <= len(few) or len(awaited) <= len(few):
        return False
    reached = set(few)
    grew = True
    while grew:
        before = len(reached)
        reached.update(rank for hold in holds if set(hold.blockers) & reached for rank in hold.waiting)
        grew = len(reached) > before
    return circle <= reached


def _misdirected(circle: Set[int], holds: Sequence[Recorded]) -> set[int]:
    """Ranks that addressed the wrong peer: their transfer has no other end, nor does a third rank's transfer with them.

    If every rank of the circle is in a transfer, the circle may have no other cause, unless the sizes show which
    transfers belong together.
    """
    lonely = {rank: hold.transfer for hold in holds if hold.transfer and hold.lacking for rank in hold.waiting}
    missed = {hold.transfer.peer: hold.transfer for hold in holds if hold.transfer and hold.lacking}
    sizes = (
        Counter(lonely[rank].elements for rank in circle if rank in lonely) if circle <= lonely.keys() else Counter()
    )
    odd = set()
    for rank, mine in lonely.items():
        if sizes[mine.elements] > 1:
            continue
        theirs = missed.get(rank)
        if theirs is None or mine.peer == theirs.rank or mine.elements != theirs.elements:
            continue
        if (mine.rank == mine.source) != (theirs.rank == theirs.source):
            odd.add(rank)
    return odd


_ROUNDS = 6
"""How many earlier rounds are examined."""


def odd_by_rounds(records: Records, holds: Sequence[Recorded]) -> set[int]:
    """Return the rank that made fewer or more sends and receives than usual, among two in a circle.

    What is usual is shown by peers in similar groups, other members, or its own earlier rounds. The set is empty unless
    exactly one rank deviates.
    """
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


def odd_by_siblings(records: Records, holds: Sequence[Recorded]) -> set[int]:
    """The rank that made fewer or more transfers than its counterparts in similar groups; empty unless exactly one did.

    Transfers count up to the last collective of each rank that waits in a transfer or is awaited in one.
    """
    transfers = [hold for hold in holds if hold.transfer is not None]
    ends = {rank: hold.group for hold in transfers for rank in (*hold.blockers, *hold.waiting)}
    if records.only_active or not ends:
        return set()
    odd = {rank for rank, group in ends.items() if _differs_from_siblings(records, rank, group)}
    return odd if len(odd) == 1 else set()


def _differs_from_siblings(records: Records, rank: int, group: Group) -> bool:
    """Whether a rank's counterparts in similar groups all made the same number of transfers, and the rank did not."""
    alike = [each for each in records.groups.values() if kind_of(each) == kind_of(group)]
    place = group.ranks().index(rank)
    siblings = [each.ranks()[place] for each in alike if each.id != group.id and len(each.ranks()) > place]
    last = records.query(
        "SELECT group_id, seq FROM recorded_numbers JOIN rules USING (call) "
        "WHERE rank = ? AND NOT is_p2p AND NOT closing ORDER BY record_id DESC LIMIT 1",
        [rank],
    )
    if not last or not siblings:
        return False
    kind = kind_of(records.groups[last[0]["group_id"]])
    collectives = ", ".join(str(each.id) for each in records.groups.values() if kind_of(each) == kind)
    rows = records.query(
        "WITH calls AS (SELECT rank, min(record_id) AS at FROM recorded_numbers JOIN rules USING (call) "
        f"WHERE group_id IN ({collectives}) AND NOT is_p2p AND NOT closing AND seq = ? AND rank IN ? GROUP BY rank) "
        "SELECT c.rank, max(t.p2p_seq) AS made FROM calls c JOIN recorded_numbers t "
        f"ON t.rank = c.rank AND t.record_id < c.at AND t.group_id IN ({', '.join(str(each.id) for each in alike)}) "
        "GROUP BY c.rank",
        [last[0]["seq"], [rank, *siblings]],
    )
    made = {row["rank"]: row["made"] for row in rows}
    counts = {made[each] for each in siblings if each in made}
    return rank in made and len(counts) == 1 and made[rank] not in counts


_Made = dict[int, list[int]]
"""Per rank: how many transfers it had made at each of the last collectives, of which the last one hangs."""


def _transfers_made(records: Records, collective: Recorded, transfers: Group) -> _Made:
    """Transfers made by all ranks of similar groups. A rank that never entered the collective counts up to its end."""
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
    return gathered((row["rank"], row["made"]) for row in rows)


def _compared(records: Records, made: _Made, group: Group, rank: int, other: int) -> int:
    """How many more transfers than usual a rank has made (negative: fewer); 0 if that is unknown."""
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


def odd_by_order(records: Records, holds: Sequence[Recorded]) -> set[int]:
    """The ranks of a circle that called two kinds of collectives in another order than all others; empty if unclear.

    Ranks of several similar groups can deviate in this way at the same place of the program.
    """
    collectives = [hold for hold in holds if hold.transfer is None and hold.seq is not None and hold.fronts]
    alike = gathered(((kind_of(hold.group), hold.seq), hold) for hold in collectives)
    if len(alike) != 2 or len({kind for kind, _ in alike}) != 2:
        return set()
    larger, smaller = sorted(alike.values(), key=lambda each: -len(each[0].group.ranks()))
    before = _called_before(records, smaller[0].group, larger[0])
    now = {rank: rounds[-1] for rank, rounds in before.items() if rounds[-1] is not None}
    suspects = _members_seen(larger) & _members_seen(smaller)
    last = {rank: _last_called(hold.group, rank) for hold in smaller for rank in hold.group.ranks()}
    theirs = {rank: now.get(rank, last[rank]) for rank in suspects}
    others = [now[rank] for rank in now.keys() - suspects]
    usual = _most_have(others or list(theirs.values()))
    if usual is None and not others:
        usual = _usual_by_rounds(before.values())
    # Pipeline stages make different numbers of collectives: then no rank here does what the others do.
    if usual is None or usual not in theirs.values():
        return set()
    odd = {rank for rank in suspects if now.get(rank, usual) != usual}
    # A rank that has not entered the larger group's operation has made more calls of the smaller kind before it.
    odd |= {rank for rank in suspects - now.keys() if last[rank] > usual}
    return odd if len(odd) < len(suspects) else set()


def _most_have(counts: Sequence[int]) -> int | None:
    """The count that more than half share; None if there is none."""
    usual, many = Counter(counts).most_common(1)[0]
    return usual if 2 * many > len(counts) else None


def _usual_by_rounds(rounds: Iterable[Sequence[int | None]]) -> int | None:
    """How many collectives of the smaller kind precede an operation, if every earlier round added the same number."""
    past = {tuple(each[:-1]) for each in rounds if None not in each[:-1]}
    if len(past) != 1:
        return None
    calls = [count for count in past.pop() if count is not None]
    steps = {after - before for before, after in pairwise(calls)}
    return calls[-1] + steps.pop() if len(calls) > 2 and len(steps) == 1 else None


def _members_seen(holds: Iterable[Recorded]) -> set[int]:
    return {rank for hold in holds for rank in (*hold.fronts, *hold.blockers)}


def _called_before(records: Records, smaller: Group, larger: Recorded) -> dict[int, list[int | None]]:
    """Per rank: the last collective in groups like `smaller` before each of its latest calls in groups like `larger`.

    None for a call that the rank has not made, or that its record has lost.
    """
    alike = {
        kind_of(each): [group.id for group in records.groups.values() if kind_of(group) == kind_of(each)]
        for each in (smaller, larger.group)
    }
    seq = larger.seq or 0
    rows = records.query(
        "SELECT n.rank, b.seq AS round, max(n.seq) AS seq FROM recorded_numbers n JOIN rules USING (call) JOIN ("
        "SELECT rank, seq, min(record_id) AS at FROM recorded_numbers JOIN rules USING (call) "
        "WHERE NOT is_p2p AND NOT closing AND group_id IN ? AND seq BETWEEN ? AND ? GROUP BY rank, seq"
        ") b ON b.rank = n.rank AND n.record_id < b.at "
        "WHERE NOT is_p2p AND NOT closing AND n.group_id IN ? GROUP BY n.rank, b.seq",
        [alike[kind_of(larger.group)], seq - _ROUNDS, seq, alike[kind_of(smaller)]],
    )
    found: dict[int, list[int | None]] = {}
    for row in rows:
        rounds = found.setdefault(row["rank"], [None] * (_ROUNDS + 1))
        rounds[row["round"] - seq + _ROUNDS] = row["seq"]
    return found


def _last_called(group: Group, rank: int) -> int:
    last = group.last_entered(rank)
    return -1 if last is None else last
