"""Solves who waits for whom across all groups: the smallest set of ranks whose absence explains every wait.

An edge leads from a waiting rank, through the operation it is in, to each rank that is not in it. A rank that waits
for none is a root. Ranks that wait for each other in a circle block each other. A rank without a record or a report
may be in any state: it is blamed only for waits that nothing else explains.

The sources that know who is in which operation (flight records, log reports) create the `Hold`s, and know the state
of a rank that blocks others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from ddx_tools.analysis.collectives.findings import State, Where
from ddx_tools.model.diagnosis import rank_list

By = Literal["pairing", "absence", "order", "path", "nothing"]
"""What singles out the deviating ranks of a circle: the pairing of sends and receives, their absence from an operation
that many are in, or the call order that others follow."""


@dataclass(kw_only=True)
class Hold:
    """An operation, the ranks waiting in it, and the ranks that keep them waiting."""

    at: Where
    waiting: dict[int, float | None] = field(default_factory=dict)
    """Per waiting rank, the seconds from its call to the time of the evidence; None if unknown."""
    lacking: tuple[int, ...] = ()
    """Ranks that had not called it by then."""
    behind: tuple[int, ...] = ()
    """Ranks that called it, but are still in an earlier call, or whose GPU never started it."""
    elsewhere: tuple[int, ...] = ()
    """Ranks that called another operation in its place; the minority, if there is one."""
    unknown: tuple[int, ...] = ()
    """Ranks without any evidence."""
    too_early: tuple[int, ...] = ()
    """Ranks whose evidence is too old."""
    by_deviation: bool = False
    """The rank in it got there by its own deviation, so it waits for no rank."""

    @property
    def op(self) -> str:
        """Name of the operation."""
        return self.at.operation or "a collective"

    @property
    def seq(self) -> int | None:
        """Sequence number of the collective; None for a transfer, or if unknown."""
        return self.at.seq

    @property
    def blockers(self) -> tuple[int, ...]:
        """The ranks that are known to keep the others waiting."""
        return tuple(sorted({*self.lacking, *self.behind, *self.elsewhere}))

    @property
    def wait_s(self) -> float | None:
        """The longest known wait, in seconds."""
        return max((wait for wait in self.waiting.values() if wait is not None), default=None)

    @property
    def is_complete(self) -> bool:
        """Whether all members of the group are in the operation, so that it waits for no rank.

        False if any member is missing or without current evidence, or if a deviating rank is in it.
        """
        return not (self.blockers or self.unknown or self.too_early or self.by_deviation)


H = TypeVar("H", bound=Hold)


@dataclass(frozen=True)
class SolvedWaits(Generic[H]):
    """A solved wait graph: the waits, and the roots that all of them lead to."""

    holds: tuple[H, ...]
    """The holds in which some rank waits for another."""
    roots: Mapping[int, State]
    """The smallest set of ranks that explains every wait, with how each of them blocks the others."""
    tie: bool
    """Other ranks would explain the waits as well: the roots are all candidates, not certain culprits."""
    victims: tuple[int, ...]
    sentences: tuple[str, ...]
    """The waits as sentences, from those nearest to a root to the farthest."""
    circle: tuple[int, ...] = ()
    """All ranks of the circle that the roots belong to, if there is one."""
    told_by: By = "nothing"
    """What distinguishes the roots from the others in the circle."""
    unseen: tuple[int, ...] = ()
    """If there are no roots: the ranks where all waits end, whose current operation is unknown."""

    def by_state(self) -> dict[State, list[int]]:
        """Map each state to the root ranks that block the others in that state.

        The key `unseen` holds the ranks at which all waits end and whose current operation is unknown.
        """
        found: dict[State, list[int]] = {"unseen": list(self.unseen)} if self.unseen else {}
        for rank, state in sorted(self.roots.items()):
            found.setdefault(state, []).append(rank)
        return dict(sorted(found.items()))


@dataclass(frozen=True)
class Known(Generic[H]):
    """What a source knows apart from the waits."""

    state: Callable[[int], State | None]
    """How a rank that waits for none blocks others; None if nothing more is known about it."""
    silent: Callable[[list[H]], tuple[Iterable[int], bool]]
    """Given unexplained waits: the fewest ranks without a report that explain them, and whether others also would."""
    odd: Callable[[set[int]], tuple[Iterable[int], By]] = lambda circle: ((), "nothing")
    """Given a circle: its deviating ranks, if anything singles them out, and what does."""
    silence: State = "no_record"
    """The state given to a rank without evidence."""


def graph_of(holds: Sequence[H], known: Known[H]) -> SolvedWaits[H] | None:
    """Solve the graph of the given waits; None if no rank waits for another."""
    held = [hold for hold in holds if hold.blockers or hold.unknown]
    if not held:
        return None
    roots, tie, circle, told_by = _roots(holds, known)
    waiting = {rank for hold in held for rank in hold.waiting}
    ends = {rank for sink in _sinks(holds) for rank in sink if not any(rank in hold.waiting for hold in holds)}
    unseen = () if roots or any(hold.unknown for hold in held) else tuple(sorted(ends))
    distance = _distances(set(roots) | set(unseen), held)
    victims = tuple(sorted(waiting - set(roots)))
    return SolvedWaits(tuple(held), roots, tie, victims, tuple(_sentences(held, distance)), circle, told_by, unseen)


def _roots(holds: Sequence[H], known: Known[H]) -> tuple[dict[int, State], bool, tuple[int, ...], By]:
    """(roots with states, whether others would also explain the waits, the roots' circle, what singled them out)."""
    told_by: By = "nothing"
    roots: dict[int, State] = {}
    tie = unseen = False
    circle: tuple[int, ...] = ()
    awaited = {rank for hold in holds for rank in hold.blockers}
    waits_for_unknown = {rank for hold in holds if not hold.blockers and hold.unknown for rank in hold.waiting}
    for sink in _sinks(holds):
        if len(sink) > 1:
            found, told_by = known.odd(sink)
            odd = sorted(found)
            tie = tie or not odd
            roots.update(dict.fromkeys(odd or sorted(sink), "circle"))
            circle = tuple(sorted(sink))
            continue
        (rank,) = sink
        state = known.state(rank) if rank in awaited else None
        if state is not None and state != "unseen":
            roots[rank] = state
        elif rank not in awaited or rank in waits_for_unknown:
            continue
        elif state == "unseen":
            unseen = True  # Its source no longer shows what it is in.
        else:
            tie = True  # It is in something about which nothing more is known, such as a kernel that all are in.
    if roots:
        # A rank with nothing pending waits for none. That explains the waits, whatever another rank's ring has lost.
        return roots, tie or (unseen and "outside" not in roots.values()), circle, told_by
    tie = tie or unseen
    unknown, several = known.silent([hold for hold in holds if not hold.blockers and hold.unknown])
    return dict.fromkeys(sorted(unknown), known.silence), tie or several, (), told_by


def _sinks(holds: Sequence[Hold]) -> list[set[int]]:
    """Sets of ranks that wait for none outside their set. Operations are nodes as well, with negative numbers."""
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
        # An operation that waits for no known rank is not a root.
        if ranks and not any(target >= 0 or edges[target] for target in beyond):
            found.append(ranks)
    return found


def _distances(roots: set[int], holds: Sequence[Hold]) -> dict[int, int]:
    """The number of waits from each rank to the nearest root."""
    distance = dict.fromkeys(roots, 0)
    frontier, steps = roots, 0
    while frontier:
        steps += 1
        nearer = frontier
        frontier = {
            rank
            for hold in holds
            if {*hold.blockers, *hold.unknown} & nearer
            for rank in hold.waiting
            if rank not in distance
        }
        distance.update(dict.fromkeys(frontier, steps))
    return distance


_MAX_SENTENCES = 7


def _sentences(holds: Iterable[Hold], distance: Mapping[int, int]) -> list[str]:
    """One sentence per operation, nearest to the roots first."""
    ordered = sorted(
        holds, key=lambda hold: (min(distance.get(r, len(distance)) for r in hold.waiting), min(hold.waiting))
    )
    told = [
        f"{rank_list(sorted(hold.waiting)).capitalize()} wait{'' if len(hold.waiting) > 1 else 's'} in {hold.op}"
        f" ({'' if hold.seq is None else f'collective {hold.seq} of '}{hold.at.group}) "
        f"for {rank_list(sorted({*hold.blockers, *hold.unknown}))}."
        for hold in ordered[:_MAX_SENTENCES]
    ]
    rest = len(ordered) - len(told)
    return [*told, f"{rest} more operations wait for these."] if rest else told


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


def circle_in(towards: Mapping[int, int]) -> list[int]:
    """The ranks of a circle, in order, in a graph where each rank points to one other; empty if there is no circle."""
    led_nowhere: set[int] = set()
    for start in towards:
        steps: dict[int, int] = {}
        following: int | None = start
        while following is not None and following not in steps and following not in led_nowhere:
            steps[following] = len(steps)
            following = towards.get(following)
        if following in steps:
            return [*steps][steps[following] :]
        led_nowhere.update(steps)
    return []


def fewest(sets: Iterable[Set[int]]) -> tuple[set[int], bool]:
    """The smallest set of ranks that hits every given set, and whether other ranks would do so as well.

    Greedy: repeatedly takes the ranks that are in most of the remaining sets, with all ranks of a tie.
    """
    left, found, tie = list(sets), set[int](), False
    while left:
        counts = Counter(rank for ranks in left for rank in ranks)
        most = max(counts.values(), default=0)
        best = {rank for rank, count in counts.items() if count == most}
        tie, found = tie or len(best) > 1, found | best
        left = [ranks for ranks in left if not best & ranks]
    return found, tie
