"""Finds the roots of the wait graph: its components that no wait leaves.

Waits lead to a root, and a root waits for none. Ranks that wait for each other in a circle are reported as a circle,
unless something singles some of them out. Ranks without evidence are blamed only for waits that nothing else explains,
and then as few as possible, a whole host before ranks of several. A majority is never a root.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

from ddx_tools.analysis.collectives.odd_ranks import missing_from_group
from ddx_tools.analysis.collectives.wait_solver import components, fewest
from ddx_tools.analysis.wait_graph.model import (
    EVENTS,
    CallMismatch,
    EdgeKind,
    Node,
    NodeCondition,
    NodeState,
    Source,
    Sure,
    WaitGraph,
    program_of,
    ranks_of,
)
from ddx_tools.model.diagnosis import SuspectEvent, rank_list
from ddx_tools.model.grouping import gathered

_KNOWN = (Sure.SEEN, Sure.INFERRED)
_SMALLEST_HOST = 2
_FEW = 8
"""Up to one in so many ranks are few."""
_EXPLAINING = frozenset({NodeState.OUTSIDE, NodeState.STOPPED, NodeState.ENDED})
"""States of ranks seen to wait for none, which also explain the waits of ranks in something unknown."""
_STOPPING = ("operation", "call_site", "shape", "root")
"""Differences with which members cannot finish an operation; with different data types some backends can."""


@dataclass(frozen=True)
class Root:
    """Ranks in one state that all waits lead to."""

    ranks: tuple[int, ...]
    state: NodeState
    event: SuspectEvent
    conditions: tuple[NodeCondition, ...] = ()
    mismatch: CallMismatch | None = None
    host: str | None = None
    """Set if these are all ranks on that host."""
    within: bool = False
    """The waits end in threads or processes of the ranks other than the main thread; `conditions` are theirs."""


@dataclass(frozen=True)
class Roots:
    """The ranks that block a job according to the wait graph, and their victims."""

    roots: tuple[Root, ...] = ()
    victims: tuple[int, ...] = ()
    """Ranks that wait, directly or through others, and are not roots."""
    open: str = ""
    """Why no rank is singled out although ranks wait; empty if the roots are clear, or no rank waits."""
    circle: tuple[int, ...] = ()
    """All ranks of the circle, whether or not a root was singled out of it."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of all roots."""
        return tuple(sorted({rank for root in self.roots for rank in root.ranks}))

    @property
    def clear(self) -> bool:
        """Whether exactly these ranks block the job, with nothing left open."""
        return bool(self.roots) and not self.open


@dataclass
class _Search:
    """Working state of the search from the waits to their roots."""

    graph: WaitGraph
    edges: dict[Node, set[Node]]
    roots: dict[int, NodeState] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)
    circle: tuple[int, ...] = ()
    mismatch: CallMismatch | None = None
    unseen: set[int] = field(default_factory=set)
    """Ranks that others wait for and whose records no longer show what they are in."""
    possible: list[tuple[set[int], str]] = field(default_factory=list)
    """Sets of ranks of which one blocks a rank that others wait for, each with a sentence about it."""
    unexplained: set[int] = field(default_factory=set)
    """Ranks that others wait for and that themselves wait for something unknown."""
    within: dict[int, NodeCondition] = field(default_factory=dict)
    """Per rank, the condition of the thread or process that its main thread waits for."""

    @cached_property
    def waits_for_unknown(self) -> set[int]:
        """Ranks in operations from which no rank is known to be missing, but which have members without evidence."""
        return _waits_for_unknown(self.graph)


def find_roots(graph: WaitGraph) -> Roots:
    """Find the roots of a wait graph: ranks that others wait for and that wait for none, circles, and mismatches.

    Empty if no rank waits. `Roots.open` says what leaves the answer open; unless it is empty, a root is a guess.
    The size of a set of ranks means nothing here: a majority is neither blamed for being one nor left out.
    """
    found = _Search(graph, graph.leaving(*_KNOWN))
    awaited = {node for nodes in found.edges.values() for node in nodes}
    for sink in _sinks(graph, found.edges):
        if len(ranks_of(sink)) > 1:
            _take_circle(found, sink)
        else:
            _take_single(found, sink, awaited)
    # A rank that waits for one of several, one of which is a root, is taken to wait for that root.
    found.open += [words for ranks, words in found.possible if not ranks & found.roots.keys()]
    if found.unexplained and not _EXPLAINING & set(found.roots.values()):
        # A rank that left its path, but that nobody waits for, explains no wait.
        if odd := graph.off_path & ranks_of(awaited):
            found.roots = dict.fromkeys(sorted(odd), NodeState.ELSEWHERE) | found.roots
        else:
            verb = "wait" if len(found.unexplained) > 1 else "waits"
            found.open.append(f"nothing shows what {rank_list(found.unexplained)} {verb} for")
    if graph.gone and (found.open or not found.roots):
        # A rank's end explains what nothing else does, whether or not any rank is seen to wait.
        found.roots = dict.fromkeys(sorted(graph.gone), NodeState.ENDED)
        found.open.clear()
    if not found.roots:
        if found.unseen:
            one = len(found.unseen) == 1
            record, their = ("record", "its") if one else ("records", "their")
            verb = "no longer holds" if one else "no longer hold"
            found.open.append(f"the {record} of {rank_list(found.unseen)} {verb} {their} current call")
        _take_mismatch(found) or _take_unknown(found)
    elif found.unseen and NodeState.OUTSIDE not in found.roots.values():
        found.open.append("nothing shows what a rank that others wait for is doing")
    return _told(found)


def _sinks(graph: WaitGraph, edges: Mapping[Node, Set[Node]]) -> list[set[Node]]:
    """The components that no wait leaves, with at least one rank in each.

    A node that belongs to no rank and waits for none (an operation that all members are in, a file) does not count.
    """
    nodes = sorted({*edges, *(edge.waiter for edge in graph.edges), *(edge.awaited for edge in graph.edges)})
    number = {node: place for place, node in enumerate(nodes)}
    numbered = {number[node]: {number[each] for each in edges.get(node, ())} for node in nodes}
    found = []
    for component in components(numbered):
        beyond = {nodes[each] for place in component for each in numbered[place] - component}
        members = {nodes[place] for place in component}
        if ranks_of(members) and not any(node.rank >= 0 or edges.get(node) for node in beyond):
            found.append(members)
    return found


def _take_single(found: _Search, sink: set[Node], awaited: Set[Node]) -> None:
    graph = found.graph
    (rank,) = ranks_of(sink)
    condition = _condition(graph, sink, rank)
    if not sink & awaited:
        return
    if condition is not None and condition.state not in (NodeState.UNSEEN, NodeState.UNKNOWN, NodeState.UNREAD):
        found.roots[rank] = condition.state
        if program_of(rank) not in sink:
            found.within[rank] = condition
    elif condition is None and len(sink) > 1 and not sink & graph.operations.keys():
        # Threads of one process wait for each other.
        found.roots[rank] = NodeState.OUTSIDE
    elif rank in found.waits_for_unknown:
        _take_possible(found, rank)
    elif condition is not None and condition.state is NodeState.UNSEEN:
        found.unseen.add(rank)
    else:
        # It is in something about which nothing more is known, such as a kernel that all are in.
        found.unexplained.add(rank)


def _take_possible(found: _Search, rank: int) -> None:
    """Handle a rank that others wait for and that waits for one of several: that one blocks them all."""
    graph = found.graph
    inside = {edge.awaited for edge in graph.edges if edge.waiter.rank == rank}
    possible = {edge.awaited.rank for edge in graph.edges if edge.waiter in inside and edge.awaited.rank >= 0}
    words = " and ".join(sorted({graph.operations[node].words for node in inside & graph.operations.keys()}))
    if len(possible) > 1 and all(rank in _waits_in_transfers(found, each, words) for each in possible):
        # Whichever rank it waits for also waits for it in the same exchange: it is the common end of all these pairs.
        found.roots[rank] = NodeState.ELSEWHERE
        return
    if possible and not any(_is_silent(graph, each) for each in possible):
        among = f"one of {rank_list(possible)}" if len(possible) > 1 else rank_list(possible)
        found.possible.append((possible, f"{rank_list([rank])} waits in {words} for {among}; nothing shows for which"))


def _waits_in_transfers(found: _Search, rank: int, words: str) -> set[int]:
    """The ranks that a rank certainly waits for in sends or receives of one kind, at one place."""
    operations = {
        node: found.graph.operations[node]
        for node in found.edges.get(program_of(rank), set())
        if node in found.graph.operations
    }
    alike = [node for node, each in operations.items() if each.kind is EdgeKind.TRANSFER and each.words == words]
    return ranks_of(each for node in alike for each in found.edges.get(node, ()))


def _condition(graph: WaitGraph, sink: Iterable[Node], rank: int) -> NodeCondition | None:
    """The condition of a sink: of its own nodes, else of the rank's program."""
    own = [each for node in sorted(sink) for each in graph.conditions.get(node, ())]
    return own[0] if own and program_of(rank) not in sink else graph.state(rank)


def _waits_for_unknown(graph: WaitGraph) -> set[int]:
    """Compute `_Search.waits_for_unknown`."""
    known = {edge.waiter for edge in graph.edges if edge.certainty in _KNOWN and edge.waiter in graph.operations}
    unknown = {edge.waiter for edge in graph.edges if edge.certainty is Sure.POSSIBLE} - known
    return {edge.waiter.rank for edge in graph.edges if edge.awaited in unknown}


# --- circles


def _take_circle(found: _Search, sink: set[Node]) -> None:
    """Handle ranks that wait for each other: find who differs from all others, or is absent from where many are."""
    circle = ranks_of(sink)
    found.circle = tuple(sorted(circle))
    told = [m for m in found.graph.mismatches if m.aspect.startswith("circle") and set(m.deviating) < circle]
    elsewhere = {rank for rank in circle if (its := found.graph.state(rank)) and its.state is NodeState.ELSEWHERE}
    if told:
        found.mismatch = told[0]
        odd = set(told[0].deviating)
    else:
        odd = elsewhere if 0 < len(elsewhere) < len(circle) else _absent_from_many(found.graph, sink, circle)
        if len(odd) > 1 and _are_in_a_group(found.graph, odd):
            # They need not have called anything else: a member of their group, among the others, has left them.
            found.open.append(f"nothing shows whom {rank_list(odd)} wait for in their group")
            odd = missing_from_group(odd, found.graph.ranks)
        elif many := _in_several_groups(found.graph, sink, odd):
            found.open.append(f"nothing shows in which of their groups {rank_list(many)} wait")
            odd = set()
    operations = [found.graph.operations[node] for node in sink & found.graph.operations.keys()]
    transfers = all(operation.kind is EdgeKind.TRANSFER for operation in operations)
    if not odd and transfers and 2 * len(circle) <= len(found.graph.ranks):
        # None of them sends (or receives) first, so together they block all others.
        found.roots.update(dict.fromkeys(sorted(circle), NodeState.ELSEWHERE))
        return
    owing = set[int]() if odd else _owing_a_transfer(found.graph, sink)
    odd = odd or owing or _holders_of_files(found.graph, sink)
    if not odd:
        found.open.append(f"{rank_list(circle)} wait for each other")
    # A rank singled out by what it called is itself waiting in that call.
    state = NodeState.ELSEWHERE if told or owing else NodeState.OUTSIDE
    found.roots.update(dict.fromkeys(sorted(odd), state))


def _owing_a_transfer(graph: WaitGraph, sink: Set[Node]) -> set[int]:
    """The one rank of a circle that others wait for in transfers, although it has passed its end of all of them.

    A rank that itself waits in a transfer is blocked, and does not count.
    """
    transfers = {node for node in sink if (its := graph.operations.get(node)) and its.kind is EdgeKind.TRANSFER}
    inside = graph.in_operation()
    held = ranks_of(waiter for node in transfers for waiter in inside.get(node, ()))
    last = [edge for edge in graph.edges if edge.waiter in transfers and edge.awaited.rank not in held]
    owing = ranks_of(edge.awaited for edge in last)
    return owing if len(owing) == 1 and {edge.waiter for edge in last} <= graph.left_behind else set()


def _holders_of_files(graph: WaitGraph, sink: Set[Node]) -> set[int]:
    """The ranks of a circle that hold a file lock which others wait for, while they wait for those others."""
    locks = [edge for edge in graph.edges if edge.kind is EdgeKind.FILE_LOCK and {edge.waiter, edge.awaited} <= sink]
    return ranks_of(edge.awaited for edge in locks) - ranks_of(edge.waiter for edge in locks)


def _absent_from_many(graph: WaitGraph, sink: Set[Node], circle: Set[int]) -> set[int]:
    """The few ranks of a circle that are not in an operation most of its ranks are in; empty if several sets fit."""
    inside = graph.in_operation()
    waits_in = _ranks_behind(graph, sink)
    fitting: list[set[int]] = []
    for node in sorted(sink & graph.operations.keys()):
        if graph.operations[node].kind is not EdgeKind.COLLECTIVE:
            continue
        there = ranks_of(inside.get(node, ())) | waits_in.get(node, set())
        away = circle - there
        if away and len(away) < len(there & circle) and away not in fitting:
            fitting.append(set(away))
    exchanging = [node for node in sink if (its := graph.operations.get(node)) and its.kind is EdgeKind.TRANSFER]
    there = set().union(*(waits_in.get(node, set()) for node in exchanging))
    away = set(circle - there)
    beside = ranks_of(waiter for waiters in inside.values() if ranks_of(waiters) & away for waiter in waiters)
    if away and len(away | beside) < len(there) and away not in fitting:
        # All others exchange with each other; these, which their transfers wait for, have left the exchange.
        fitting.append(away)
    smallest = min(map(len, fitting), default=0)
    best = [few for few in fitting if len(few) == smallest]
    return _first_of(graph, best[0]) if len(best) == 1 else set()


def _are_in_a_group(graph: WaitGraph, ranks: Set[int]) -> bool:
    """Whether these ranks, and no others, are in one operation that ranks elsewhere need not be members of."""
    return any(
        graph.operations[node].open_members and ranks_of(waiters) == ranks
        for node, waiters in graph.in_operation().items()
    )


def _in_several_groups(graph: WaitGraph, sink: Set[Node], odd: Set[int]) -> set[int]:
    """The ranks of a circle in a call that passes several groups in turn, if the odd ones are not in it.

    They may wait for each other in different groups, none of which the odd ranks need to be members of.
    """
    inside = graph.in_operation()
    several = [node for node in sink & graph.operations.keys() if graph.operations[node].several_groups]
    there = set().union(*(ranks_of(inside.get(node, ())) for node in several))
    return there if odd and not odd & there else set()


def _first_of(graph: WaitGraph, ranks: set[int]) -> set[int]:
    """Of ranks in several operations, those whose operation no other of them reaches by itself: the rest await that."""
    inside = {node: ranks_of(waiters) & ranks for node, waiters in graph.in_operation().items()}
    awaiting = {
        rank for first, then in graph.precedes if inside.get(first) for rank in inside.get(then, set()) - inside[first]
    }
    return ranks - awaiting or ranks


def _ranks_behind(graph: WaitGraph, sink: Set[Node]) -> dict[Node, set[int]]:
    """For each operation, the ranks with a thread in it."""
    return {node: ranks_of(waiters) for node, waiters in graph.in_operation().items() if node in sink}


# --- operations that all members are in, and ranks without evidence


def _take_mismatch(found: _Search) -> bool:
    """Take as roots the members of a hanging operation that differ in it from a majority; whether there are any.

    Missing evidence about other members does not matter then: the difference alone blocks all of them.
    """
    stuck = {edge.awaited for edge in found.graph.edges} & found.graph.operations.keys()
    lacking = {edge.waiter for edge in found.graph.edges if edge.certainty in _KNOWN}
    for mismatch in found.graph.mismatches:
        if mismatch.decided and mismatch.at in stuck - lacking and mismatch.aspect in _STOPPING:
            found.mismatch = mismatch
            found.roots.update(dict.fromkeys(mismatch.deviating, NodeState.ELSEWHERE))
            found.open.clear()
            return True
    return False


def _take_unknown(found: _Search) -> bool:
    """Take as roots the fewest ranks without evidence that explain all unexplained waits; whether there are any."""
    graph = found.graph
    sets = _sets_of_unknown(graph)
    if not sets:
        return False
    states = {rank: its.state for rank in set().union(*sets.values()) if (its := graph.state(rank))}
    all_in_one = any(each.complete and each.kind is EdgeKind.COLLECTIVE for each in graph.operations.values())
    if host := _host_that_explains(graph, sets.values()):
        found.roots.update(dict.fromkeys(host, NodeState.UNKNOWN))
    else:
        alone = set().union(*(ranks for ranks in sets.values() if len(ranks) == 1))
        more, tie = fewest(ranks for ranks in sets.values() if not alone & ranks)
        ranks = alone | more
        if tie and _are_the_few_absent(graph, possible := set().union(*sets.values())):
            ranks, tie = possible, False
        found.roots.update({rank: states.get(rank, NodeState.UNKNOWN) for rank in sorted(ranks)})
        if tie or _says_little(graph, sets, ranks):
            found.open.append("equally many other ranks without a record would also explain the waits")
    if all_in_one:
        found.open.append("in some groups, all members entered the operation, yet none has finished it")
    return True


def _sets_of_unknown(graph: WaitGraph) -> dict[Node, set[int]]:
    """For each operation that no rank is known to be missing from: its members without evidence."""
    known = {edge.waiter for edge in graph.edges if edge.certainty in _KNOWN and edge.waiter in graph.operations}
    found: dict[Node, set[int]] = {}
    for edge in graph.edges:
        if edge.certainty is Sure.POSSIBLE and edge.waiter in graph.operations and edge.waiter not in known:
            found.setdefault(edge.waiter, set()).add(edge.awaited.rank)
    # An operation that may wait for a rank with evidence is not taken to wait for one without.
    silent = {rank for rank in set().union(*found.values()) if _is_silent(graph, rank)} if found else set()
    return {node: ranks for node, ranks in found.items() if ranks <= silent}


def _is_silent(graph: WaitGraph, rank: int) -> bool:
    its = graph.state(rank)
    return its is not None and its.state in (NodeState.UNKNOWN, NodeState.UNREAD)


def _says_little(graph: WaitGraph, sets: Mapping[Node, Set[int]], ranks: Set[int]) -> bool:
    """Whether missing evidence about these ranks may mean nothing.

    If innocent ranks left nothing either, their output got lost. Several ranks do not die at once unless their host
    does. And if all waiting ranks are in one operation, these may be in it as well.
    """
    operations = [graph.operations[node] for node in sets]
    unsaid = len(operations) == 1 and operations[0].hides_root
    ahead = all(operation.called_ahead for operation in operations)
    several = len(ranks) > 1 and not _are_the_few_absent(graph, ranks)
    return graph.lone_source or ahead or unsaid or several or bool(graph.unreported ^ ranks)


def _are_the_few_absent(graph: WaitGraph, ranks: Set[int]) -> bool:
    """Whether these are all ranks without evidence, several, and few: each is then more likely gone than lost.

    Ranks that may make up a host do not count: nobody may have copied that host's files.
    """
    may_be_a_host = len(ranks) > _SMALLEST_HOST and max(ranks) - min(ranks) + 1 == len(ranks)
    few = len(ranks) > 1 and _FEW * len(ranks) <= len(graph.ranks)
    return few and graph.unreported == ranks and not may_be_a_host


def _host_that_explains(graph: WaitGraph, sets: Iterable[Set[int]]) -> set[int]:
    """All ranks of the only host without evidence, if each of the sets contains one of them; else none."""
    wanted = list(sets)
    silent = {rank for rank in graph.ranks if (its := graph.state(rank)) and its.state is NodeState.UNKNOWN}
    fitting = [
        ranks
        for ranks in _hosts(graph)
        if len(ranks) >= _SMALLEST_HOST and ranks <= silent and all(ranks & each for each in wanted)
    ]
    return fitting[0] if len(fitting) == 1 and len(fitting[0]) > _SMALLEST_HOST else set()


def _hosts(graph: WaitGraph) -> list[set[int]]:
    """The ranks of each host. If all known hosts have equally many consecutive ranks, so do unknown ones."""
    known = {host: set(ranks) for host, ranks in gathered((host, rank) for rank, host in graph.hosts.items()).items()}
    seated = [ranks for ranks in known.values() if len(ranks) > 1]
    size = max(map(len, seated), default=0)
    in_rows = all(_is_row(ranks, size) for ranks in seated)
    if not size or not in_rows:
        return list(known.values())
    return [{*range(first, first + size)} for first in range(0, max(graph.ranks) + 1, size)]


def _is_row(ranks: Set[int], size: int) -> bool:
    """Whether these ranks lie within one row of `size` consecutive ranks that starts at a multiple of `size`."""
    return min(ranks) // size == max(ranks) // size


# --- the answer


def _told(found: _Search) -> Roots:
    graph = found.graph
    # An operation that waits for a rank is not itself a rank; ranks whose waits reach no root still wait.
    waiting = {
        edge.waiter.rank for edge in graph.edges if edge.waiter.rank >= 0 and edge.awaited.rank != edge.waiter.rank
    }
    unsure = set().union(*(ranks for ranks, _ in found.possible)) if found.open else set()
    victims = waiting - found.roots.keys() - unsure
    reason = found.open[0] if found.open else ""
    if found.roots and _is_majority(found.roots, graph.ranks):
        return Roots((), tuple(sorted(victims)), reason or "the waits would blame most of the ranks", found.circle)
    if not found.roots and victims and not reason:
        reason = "the evidence shows who waits, but not for whom"
    by_state = gathered((state, rank) for rank, state in sorted(found.roots.items()))
    roots = tuple(_root(found, state, ranks) for state, ranks in by_state.items())
    return Roots(roots, tuple(sorted(victims)), reason, found.circle)


def _is_majority(roots: Mapping[int, NodeState], ranks: Set[int]) -> bool:
    known = NodeState.ENDED not in roots.values()
    return known and len(ranks) > 2 and 2 * len(roots) > len(ranks)


def _root(found: _Search, state: NodeState, ranks: Sequence[int]) -> Root:
    graph = found.graph
    within = found.within.keys() & set(ranks)
    conditions = tuple(its for rank in ranks if (its := found.within.get(rank) or graph.state(rank)) is not None)
    whole = len(ranks) > 1 and any(set(ranks) == members for members in _hosts(graph))
    hosts = {host for rank in ranks if (host := graph.hosts.get(rank))}
    host = hosts.pop() if whole and len(hosts) == 1 else None
    odd = found.mismatch if found.mismatch and set(ranks) <= set(found.mismatch.deviating) else None
    seen_elsewhere = state is NodeState.OUTSIDE and {each.source for each in conditions} == {Source.STACKS}
    event = SuspectEvent.OUTSIDE if seen_elsewhere else EVENTS[state]
    return Root(tuple(ranks), state, event, conditions, odd, host, bool(within))


def chain_of(graph: WaitGraph, roots: Roots, most: int = 7) -> list[str]:
    """The waits as sentences, those nearest to the roots first."""
    edges, near, inside = graph.leaving(*Sure), nearness(graph, roots), graph.in_operation()
    told = sorted((near.get(node, len(near)), min(ranks_of(inside[node]), default=0), node) for node in inside)
    lines = [_sentence(graph, node, ranks_of(inside[node]), edges) for *_, node in told[:most]]
    return lines + ([f"{len(told) - most} more operations wait for these."] if len(told) > most else [])


def nearness(graph: WaitGraph, roots: Roots) -> dict[Node, int]:
    """For each node whose waits lead to a root, the length of the shortest path to that root."""
    edges = graph.leaving(*Sure)
    # Members of an operation in which a root differs wait for that root, which is also in it.
    near = {root.mismatch.at: 0 for root in roots.roots if root.mismatch and root.mismatch.at}
    reached = {program_of(rank) for rank in roots.ranks} | near.keys()
    while fresh := _one_step(edges, reached) - near.keys():
        near |= dict.fromkeys(fresh, 1 + max(near.values(), default=0))
        reached |= fresh
    return near


def _one_step(edges: Mapping[Node, Set[Node]], reached: Set[Node]) -> set[Node]:
    return {waiter for waiter, awaited in edges.items() if awaited & reached} | set(reached)


def _sentence(graph: WaitGraph, node: Node, waiting: Set[int], edges: Mapping[Node, Set[Node]]) -> str:
    awaited = ranks_of(edges.get(node, ()))
    verb = "wait" if len(waiting) > 1 else "waits"
    whom = f" for {rank_list(set(awaited))}" if awaited else ""
    return f"{rank_list(set(waiting)).capitalize()} {verb} in {graph.operations[node].words}{whom}."
