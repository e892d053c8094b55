"""Who waits for whom, over all groups, and the smallest set of ranks whose absence explains every wait.

An edge leads from a waiting rank through the operation that it is in to each rank that is not in it. Who waits for
nobody is a root. Ranks that wait for each other in a circle hold each other up. A rank that left no record, or no word,
may be anything: it is blamed only for waits that nothing else explains.

What tells who is in which operation (flight records, what logs report) makes the `Hold`s, and knows in what state a
rank is that holds others up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from ddx_tools.analysis.collectives.findings import State, Where
from ddx_tools.model.diagnosis import rank_list

By = Literal["pairing", "absence", "order", "nothing"]
"""What tells the odd ones of a circle: the pairing of sends and receives, their absence from where many are, or the
order of calls that others follow."""


@dataclass(kw_only=True)
class Hold:
    """One operation, the ranks in it, and those that keep them there."""

    at: Where
    waiting: dict[int, float | None] = field(default_factory=dict)
    """Rank to seconds from its call to the moment of which it is told; None if that is not known."""
    lacking: tuple[int, ...] = ()
    """Ranks that had not called it then."""
    behind: tuple[int, ...] = ()
    """Ranks that called it, but are in an earlier call, or their GPU never started it."""
    elsewhere: tuple[int, ...] = ()
    """Ranks that called another operation in its place, against a majority if there is one."""
    unknown: tuple[int, ...] = ()
    """Ranks of which nothing tells."""
    too_early: tuple[int, ...] = ()
    """Ranks of which what tells is too old."""
    by_deviation: bool = False
    """The rank in it got there by its own deviation, and waits for nobody."""

    @property
    def op(self) -> str:
        """What was called."""
        return self.at.operation or "a collective"

    @property
    def seq(self) -> int | None:
        """Sequence number of the collective; None for a transfer, and where nothing says it."""
        return self.at.seq

    @property
    def blockers(self) -> tuple[int, ...]:
        """The ranks that are known to keep the others waiting."""
        return tuple(sorted({*self.lacking, *self.behind, *self.elsewhere}))

    @property
    def wait_s(self) -> float | None:
        """The longest wait that is known."""
        return max((wait for wait in self.waiting.values() if wait is not None), default=None)

    @property
    def is_complete(self) -> bool:
        """Whether nobody of its members is missing: they are all in it."""
        return not (self.blockers or self.unknown or self.too_early or self.by_deviation)


H = TypeVar("H", bound=Hold)


@dataclass(frozen=True)
class SolvedWaits(Generic[H]):
    """How waiting spreads, and where it leads."""

    holds: tuple[H, ...]
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
    """Without roots: where all waiting ends, of which nothing tells what they are in."""

    def by_state(self) -> dict[State, list[int]]:
        """The roots of each state, by state; those that nobody saw among them."""
        found: dict[State, list[int]] = {"unseen": list(self.unseen)} if self.unseen else {}
        for rank, state in sorted(self.roots.items()):
            found.setdefault(state, []).append(rank)
        return dict(sorted(found.items()))


@dataclass(frozen=True)
class Known(Generic[H]):
    """What a source knows beside the waits."""

    state: Callable[[int], State | None]
    """How a rank that waits for nobody holds others up; None if nothing more is known of it."""
    silent: Callable[[list[H]], tuple[Iterable[int], bool]]
    """The fewest ranks without a word that explain waits which nothing else does, and whether others would do."""
    odd: Callable[[set[int]], tuple[Iterable[int], By]] = lambda circle: ((), "nothing")
    """The odd ones of a circle, if anything singles them out, and what does."""
    silence: State = "no_record"
    """The name for a rank without evidence."""


def graph_of(holds: Sequence[H], known: Known[H]) -> SolvedWaits[H] | None:
    """The graph behind some waits; None if nobody waits for anybody."""
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
    """The roots with their states, whether others would do as well, the circle they are part of, and what tells it."""
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
            unseen = True  # Its source has lost what it is in.
        else:
            tie = True  # It is in something of which nothing more is known, like a kernel that all are in.
    if roots:
        # Who has nothing pending waits for nobody. That explains the waits, whatever the ring of another has lost.
        return roots, tie or (unseen and "outside" not in roots.values()), circle, told_by
    tie = tie or unseen
    unknown, several = known.silent([hold for hold in holds if not hold.blockers and hold.unknown])
    return dict.fromkeys(sorted(unknown), known.silence), tie or several, (), told_by


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


def _distances(roots: set[int], holds: Sequence[Hold]) -> dict[int, int]:
    """Steps from each rank to the nearest root."""
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
    """One sentence for each operation."""
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
    """The ranks of a circle, in order, where each rank leads to one; none if there is no circle."""
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
    """The fewest ranks of which one is in each set, and whether others would do.

    Again and again those that are in most of the sets that are left; of equals none is to be preferred.
    """
    left, found, tie = list(sets), set[int](), False
    while left:
        counts = Counter(rank for ranks in left for rank in ranks)
        most = max(counts.values(), default=0)
        best = {rank for rank, count in counts.items() if count == most}
        tie, found = tie or len(best) > 1, found | best
        left = [ranks for ranks in left if not best & ranks]
    return found, tie
