"""The wait-for graph over all groups, and the smallest set of ranks whose absence explains every wait.

An edge leads from a waiting rank through the operation that it is in to each rank that is not in it. Who waits for
nobody is a root. Ranks that wait for each other in a circle hold each other up (see `circles`). A rank without a record
may be anything: it is blamed only for waits that no record explains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from ddx_tools.analysis.collectives.raising import State
from ddx_tools.analysis.collectives.records.circles import By, odd_of_circle
from ddx_tools.analysis.collectives.records.comparable import hides_disagreement
from ddx_tools.analysis.collectives.records.fronts import Fronts
from ddx_tools.analysis.collectives.records.records import Records
from ddx_tools.analysis.collectives.records.waits import Hold
from ddx_tools.model import rank_list

_SMALLEST_HOST = 4


@dataclass(frozen=True)
class Graph:
    """How waiting spreads, and where it leads."""

    holds: tuple[Hold, ...]
    """Those in which somebody waits for somebody."""
    roots: Mapping[int, State]
    """The smallest set of ranks that explains every wait, and how each of them holds the others up."""
    tie: bool
    """Others explain it as well: the roots are all that may be, not all that are."""
    victims: tuple[int, ...]
    sentences: tuple[str, ...]
    """The waits in words, from those nearest to a root to the farthest."""
    circle: tuple[int, ...] = ()
    """All ranks of the circle that the roots are part of, if they are in one."""
    told_by: By = "nothing"
    """What tells the roots from the others of the circle."""
    unseen: tuple[int, ...] = ()
    """Without roots: where all waiting ends, of which the records do not tell what they are in."""

    @property
    def circle_of_transfers(self) -> bool:
        """Whether sends and receives alone make up the circle."""
        return bool(self.circle) and all(
            hold.transfer is not None for hold in self.holds if set(hold.waiting) & set(self.circle)
        )


def graph_of(records: Records, fronts: Fronts, holds: Sequence[Hold], deviating: Set[int]) -> Graph | None:
    """The graph behind some waits; None if nobody waits for anybody."""
    held = [hold for hold in holds if hold.blockers or hold.unknown]
    if not held:
        return None
    roots, tie, circle, told_by = _roots(records, fronts, holds, deviating)
    waiting = {rank for hold in held for rank in hold.waiting}
    ends = {rank for sink in _sinks(holds) for rank in sink if not any(rank in hold.waiting for hold in holds)}
    unseen = () if roots or any(hold.unknown for hold in held) else tuple(sorted(ends))
    distance = _distances(set(roots) | set(unseen), held)
    victims = tuple(sorted(waiting - set(roots)))
    return Graph(tuple(held), roots, tie, victims, tuple(_sentences(held, distance)), circle, told_by, unseen)


def _roots(
    records: Records, fronts: Fronts, holds: Sequence[Hold], deviating: Set[int]
) -> tuple[dict[int, State], bool, tuple[int, ...], By]:
    """The roots with their states, whether others would do as well, the circle they are part of, and what tells it."""
    told_by: By = "nothing"
    roots: dict[int, State] = {}
    tie = unseen = False
    circle: tuple[int, ...] = ()
    awaited = {rank for hold in holds for rank in hold.blockers}
    waits_for_unknown = {rank for hold in holds if not hold.blockers and hold.unknown for rank in hold.waiting}
    sinks = [sink for sink in _sinks(holds) if len(sink) > 1 or sink & awaited]
    for sink in sinks:
        if len(sink) > 1:
            odd, told_by = odd_of_circle(records, sink, holds)
            tie = tie or not odd
            roots.update(dict.fromkeys(sorted(odd or sink), "circle"))
            circle = tuple(sorted(sink))
            continue
        (rank,) = sink
        state = _state(fronts, rank, deviating)
        if state is not None:
            roots[rank] = state
        elif rank not in waits_for_unknown and fronts.status[rank] == "unseen":
            unseen = True  # Its ring has lost what it is in.
        elif rank not in waits_for_unknown:
            tie = True  # It is in something of which nothing more is known, like a kernel that all are in.
    if roots:
        # Who has nothing pending waits for nobody. That explains the waits, whatever the ring of another has lost.
        return roots, tie or (unseen and "outside" not in roots.values()), circle, told_by
    tie = tie or unseen
    unknown, several = _silent(records, [hold for hold in holds if not hold.blockers and hold.unknown])
    # A rank that is gone keeps nobody in an operation that all members are in.
    unexplained = any(hold.is_complete and hold.transfer is None for hold in holds)
    return dict.fromkeys(unknown, "no_record"), tie or several or unexplained, (), told_by


def _state(fronts: Fronts, rank: int, deviating: Set[int]) -> State | None:
    if rank in deviating:
        return "elsewhere"
    states: dict[str, State] = {
        "idle": "outside",
        "not_started": "device_behind",
        "finished_by_peers": "stands_still",
    }
    return states.get(fronts.status[rank])


def _sinks(holds: Sequence[Hold]) -> list[set[int]]:
    """Sets of ranks that wait for nobody outside of them. An operation is a node as well, with a negative number."""
    edges: dict[int, set[int]] = {}
    for number, hold in enumerate(holds, 1):
        edges[-number] = set(hold.blockers)
        for rank in hold.waiting:
            edges.setdefault(rank, set()).add(-number)
        for rank in hold.blockers:
            edges.setdefault(rank, set())
    found = []
    for component in components(edges):
        beyond = {target for node in component for target in edges[node]} - component
        ranks = {node for node in component if node >= 0}
        # An operation that waits for nobody known is no one.
        if ranks and not any(target >= 0 or edges[target] for target in beyond):
            found.append(ranks)
    return found


def _silent(records: Records, holds: Sequence[Hold]) -> tuple[list[int], bool]:
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


def _distances(roots: set[int], holds: Sequence[Hold]) -> dict[int, int]:
    """Steps from each rank to the nearest root."""
    distance = dict.fromkeys(roots, 0)
    frontier = roots
    while frontier:
        nearer = frontier
        frontier = {
            rank
            for hold in holds
            if {*hold.blockers, *hold.unknown} & nearer
            for rank in hold.waiting
            if rank not in distance
        }
        distance.update(dict.fromkeys(frontier, max(distance.values()) + 1))
    return distance


_MAX_SENTENCES = 7


def _sentences(holds: Iterable[Hold], distance: Mapping[int, int]) -> list[str]:
    """One sentence for each operation."""
    ordered = sorted(
        holds, key=lambda hold: (min(distance.get(r, len(distance)) for r in hold.waiting), min(hold.waiting))
    )
    told = [
        f"{rank_list(sorted(hold.waiting)).capitalize()} wait{'' if len(hold.waiting) > 1 else 's'} in {hold.op}"
        f" ({'' if hold.seq is None else f'collective {hold.seq} of '}{hold.group.label}) "
        f"for {rank_list(sorted({*hold.blockers, *hold.unknown}))}."
        for hold in ordered[:_MAX_SENTENCES]
    ]
    rest = len(ordered) - len(told)
    return [*told, f"{rest} more operations wait behind these."] if rest else told


def components(edges: Mapping[int, Set[int]]) -> list[set[int]]:
    """The strongly connected components of a graph (Kosaraju's two passes, without recursion)."""
    order: list[int] = []
    seen: set[int] = set()
    for start in sorted(edges):
        if start in seen:
            continue
        seen.add(start)
        stack = [(start, iter(sorted(edges[start])))]
        while stack:
            node, targets = stack[-1]
            target = next((each for each in targets if each not in seen), None)
            if target is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(target)
                stack.append((target, iter(sorted(edges.get(target, ())))))
    reverse: dict[int, set[int]] = {}
    for source, targets_of in edges.items():
        for target in targets_of:
            reverse.setdefault(target, set()).add(source)
    found: list[set[int]] = []
    assigned: set[int] = set()
    for root in reversed(order):
        if root in assigned:
            continue
        component, pending = set(), [root]
        while pending:
            node = pending.pop()
            if node not in assigned:
                assigned.add(node)
                component.add(node)
                pending.extend(reverse.get(node, ()))
        found.append(component)
    return found
