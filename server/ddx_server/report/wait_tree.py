"""The wait graph as trees from its roots: below each node stand those that wait for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from ddx_server.report.rank_states import STATE_WORDS, RankPicture, RankState
from ddx_tools.analysis.wait_graph.model import Node, NodeKind, Sure, WaitEdge, WaitGraph, ranks_of
from ddx_tools.analysis.wait_graph.roots import Root, Roots
from ddx_tools.diagnosis.waits import Waits
from ddx_tools.investigation.show.waits import wait_lines
from ddx_tools.model.diagnosis import rank_list
from ddx_tools.model.grouping import gathered
from ddx_tools.model.wording import capital

_MOST_NODES, _MOST_DEEP = 24, 8
_MOST_ROOTS = 6
_OF_ONE_RANK = re.compile(r" \d+$")
"""The part of a name that distinguishes a thread from the same thread on other ranks."""


@dataclass
class WaitTree:
    """A node that others wait for, with its waiters below."""

    name: str
    says: str = ""
    is_root: bool = False
    sure: bool = True
    """False if this wait for the node above is only inferred or possible."""
    waiters: list[WaitTree] = field(default_factory=list)


@dataclass
class WaitTrees:
    """The wait trees of all roots."""

    trees: list[WaitTree]
    open: str
    """Why the waits single out no rank."""
    left_out: int
    """The number of operations left out of the trees because there are too many."""
    lines: list[str]
    """All waits, as `ddx show waits` prints them."""


def wait_trees(waits: Waits | None, picture: RankPicture) -> WaitTrees | None:
    """Build the trees of who waits for whom, from the roots; None if nobody waits or the job makes progress."""
    if waits is None or waits.moving or not (waits.roots.victims or waits.roots.circle):
        return None
    graph, roots = waits.graph, waits.roots
    walk = _Walk(graph)
    trees = [
        walk.tree(
            WaitTree(capital(rank_list(set(root.ranks))), _says(graph, root, picture), is_root=True),
            walk.nodes_of(root.ranks),
        )
        for root in roots.roots[:_MOST_ROOTS]
    ]
    if not trees and (blamed := sorted(picture.blamed & walk.of_rank.keys())):
        top = WaitTree(capital(rank_list(blamed)), _doing(graph, blamed, "suspect"), is_root=True)
        trees = [walk.tree(top, walk.nodes_of(blamed))]
    if not trees:
        trees = _without_roots(walk, roots)
    left_out = len(graph.operations) - len(walk.seen & graph.operations.keys())
    return WaitTrees(trees, roots.open, left_out, wait_lines(waits))


def _says(graph: WaitGraph, root: Root, picture: RankPicture) -> str:
    held = {picture.states.get(rank) for rank in root.ranks} & {RankState.ENDED, RankState.STOPPED}
    first = "".join(f"({STATE_WORDS[state][1]}) " for state in held if state)
    return first + _doing(graph, root.ranks, root.event)


def _doing(graph: WaitGraph, ranks: Iterable[int], otherwise: str) -> str:
    told = [graph.doing[rank].says for rank in ranks if rank in graph.doing]
    told += [its.says or its.state.replace("_", " ") for rank in ranks if (its := graph.state(rank))]
    return told[0] if told else otherwise


def _without_roots(walk: _Walk, roots: Roots) -> list[WaitTree]:
    """Trees of the circle of waits, or else of the largest operations that ranks wait in."""
    if roots.circle:
        top = WaitTree(capital(rank_list(set(roots.circle))), "wait for each other in a circle")
        return [walk.tree(top, walk.nodes_of(roots.circle))]
    inside = walk.graph.in_operation()
    ordered = sorted(inside, key=lambda node: (-len(inside[node]), node))
    return [walk.operation(node) for node in ordered[:_MOST_ROOTS] if node not in walk.seen]


@dataclass
class _Walk:
    graph: WaitGraph
    seen: set[Node] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.waiting: dict[Node, list[WaitEdge]] = gathered((edge.awaited, edge) for edge in self.graph.edges)
        self.of_rank: dict[int, list[Node]] = gathered(
            (node.rank, node) for edge in self.graph.edges for node in (edge.waiter, edge.awaited) if node.rank >= 0
        )

    def nodes_of(self, ranks: Iterable[int]) -> set[Node]:
        """Return all nodes of the wait graph (such as threads) that belong to the given ranks."""
        return {node for rank in ranks for node in self.of_rank.get(rank, ())}

    def tree(self, top: WaitTree, nodes: Set[Node], depth: int = 0) -> WaitTree:
        """Add below `top` the trees of everything that waits for the given nodes, and return `top`.

        Nodes that another tree already shows are skipped; `depth` is the level of `top` and bounds the recursion.
        """
        self.seen |= nodes
        edges = [edge for node in sorted(nodes) for edge in self.waiting.get(node, ()) if edge.waiter not in self.seen]
        if depth < _MOST_DEEP:
            for edge in edges:
                if edge.waiter.kind is NodeKind.OPERATION and self._has_room(edge.waiter):
                    top.waiters.append(self.operation(edge.waiter, depth, sure=edge.certainty is Sure.SEEN))
            top.waiters += self._others([edge for edge in edges if edge.waiter not in self.seen], depth)
        return top

    def operation(self, node: Node, depth: int = 0, *, sure: bool = True) -> WaitTree:
        """Return the tree of an operation: its ranks, and below it all that waits for these ranks.

        `sure` is False if its wait for the node above is only inferred.
        """
        self.seen.add(node)
        inside = {edge.waiter for edge in self.waiting.get(node, ())}
        ranks, waiting = ranks_of(inside), inside - self.seen
        verb = "wait" if len(ranks) > 1 else "waits"
        known = self.graph.operations.get(node)
        says = f"{rank_list(ranks)} {verb} in it" if ranks else ""
        return self.tree(WaitTree(known.words if known else node.name, says, sure=sure), waiting, depth + 1)

    def _others(self, edges: list[WaitEdge], depth: int) -> list[WaitTree]:
        """Waits outside collectives (for a lock, a child process, a file); ranks that wait the same way share a
        tree."""
        if not edges or len(self.seen) > _MOST_NODES * 64:
            return []
        trees = []
        for (kind, awaited), same in gathered(((e.kind, _name(e.awaited)), e) for e in edges).items():
            nodes = {edge.waiter for edge in same} - self.seen
            if not nodes:
                continue
            ranks = ranks_of(nodes)
            name = capital(rank_list(ranks)) if ranks else _name(min(nodes))
            longest = max((edge.wait_s or 0.0 for edge in same), default=0.0)
            since = f", for {longest:.0f} s" if longest >= 1 else ""
            says = f"{'wait' if len(ranks) > 1 else 'waits'} for {awaited} ({kind.replace('_', ' ')}){since}"
            sure = all(edge.certainty is Sure.SEEN for edge in same)
            trees.append(self.tree(WaitTree(name, says, sure=sure), nodes, depth + 1))
        return trees

    def _has_room(self, node: Node) -> bool:
        return node not in self.seen and len(self.seen & self.graph.operations.keys()) < _MOST_NODES


def _name(node: Node) -> str:
    if node.kind is NodeKind.THREAD and node.rank >= 0:
        return f"rank {node.rank}" + (f", thread {_OF_ONE_RANK.sub('', node.name)}" if node.name else "")
    of = f" of rank {node.rank}" if node.rank >= 0 else ""
    return f"{node.kind} {_OF_ONE_RANK.sub('', node.name) or node.host}".strip() + of
