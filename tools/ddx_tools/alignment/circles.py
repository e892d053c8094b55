"""Who is the odd one among ranks that wait for each other in a circle.

Each operation of the circle parts the ranks into those in it and those that stay away. If a few stay away from where
many are, and wait for more than they are, the few went another way than the program's: they are the odd ones. Where
both sides are as many, nobody is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from typing import Literal

from ddx_tools.alignment.call_order import odd_by_order
from ddx_tools.alignment.records import Records
from ddx_tools.alignment.rounds import odd_by_rounds
from ddx_tools.alignment.waits import Hold

By = Literal["pairing", "absence", "order", "nothing"]


def odd_of_circle(records: Records, circle: Set[int], holds: Sequence[Hold]) -> tuple[set[int], By]:
    """The odd ones of a circle, empty if nobody is singled out; and what tells it.

    By pairing of sends and receives, by absence from where many are, or by the order of calls that others follow.
    """
    inside = [hold for hold in holds if circle & hold.waiting.keys() and circle & set(hold.blockers)]
    if len(odd := _misdirected(circle, holds) & circle) == 1:
        return odd, "pairing"
    absent = {frozenset((*hold.blockers, *hold.unknown)) for hold in inside if hold.transfer is None}
    fitting = [few for few in absent if few <= circle and _are_odd(few, circle, inside)]
    fewest = min(map(len, fitting), default=0)
    smallest = [few for few in fitting if len(few) == fewest]
    if len(smallest) == 1:
        return _without_held(set(smallest[0]), inside), "absence"
    if odd := odd_by_rounds(records, inside):
        return odd, "pairing"
    odd = odd_by_order(records, inside) & circle
    return odd, "order" if odd else "nothing"


def _without_held(few: set[int], holds: Sequence[Hold]) -> set[int]:
    """Without those of them that wait for others of them only."""
    blockers: dict[int, set[int]] = {rank: set() for rank in few}
    for hold in holds:
        for rank in few & hold.waiting.keys():
            blockers[rank].update(hold.blockers)
    return {rank for rank in few if not blockers[rank] <= few} or few


def _are_odd(few: Set[int], circle: Set[int], holds: Sequence[Hold]) -> bool:
    """Whether all others wait for these, directly or through others, and these wait for more than they are."""
    waiting = {rank for hold in holds if set(hold.blockers) == few for rank in hold.waiting}
    awaited = {rank for hold in holds if few & hold.waiting.keys() for rank in hold.blockers} - few
    if len(waiting - few) <= len(few) or len(awaited) <= len(few):
        return False
    reached = set(few)
    grew = True
    while grew:
        more = {rank for hold in holds if set(hold.blockers) & reached for rank in hold.waiting if rank not in reached}
        reached |= more
        grew = bool(more)
    return circle <= reached


def _misdirected(circle: Set[int], holds: Sequence[Hold]) -> set[int]:
    """Ranks whose transfer has no other end, while a third's with them has none either: they took another peer.

    If everybody in the circle is in a transfer, that may be all there is to it, unless the sizes tell which belong
    together.
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
