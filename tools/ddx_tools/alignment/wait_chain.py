"""The wait-for graph over all groups, and the smallest set of ranks whose absence explains every wait.

An edge leads from a waiting rank to each rank it waits for. Who waits for nobody is a root; ranks that wait
for each other in a circle and for nobody else are a root together (they deadlock).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddx_tools.alignment.waits import Wait
from ddx_tools.model import rank_list


@dataclass(frozen=True)
class Chain:
    """How waiting spreads."""

    roots: tuple[int, ...]
    victims: tuple[int, ...]
    cycles: tuple[tuple[int, ...], ...]
    """Sets of ranks that wait for each other."""
    sentences: tuple[str, ...]
    """From the ranks nearest to a root to the farthest."""
    groups: tuple[str, ...]
    """Keys of the groups that somebody waits in."""


def chain_of(waits: list[Wait]) -> Chain | None:
    """The chain behind some waits; None if nobody waits for anybody known."""
    edges: dict[int, set[int]] = {}
    for wait in waits:
        if wait.blockers:
            edges.setdefault(wait.rank, set()).update(wait.blockers)
    if not edges:
        return None
    nodes = edges.keys() | {target for targets in edges.values() for target in targets}
    components = _components(nodes, edges)
    sinks = [
        component
        for component in components
        if all(target in component for rank in component for target in edges.get(rank, ()))
    ]
    roots = sorted(rank for component in sinks for rank in component)
    cycles = tuple(tuple(sorted(component)) for component in components if len(component) > 1)
    distance = _distances(set(roots), edges)
    return Chain(
        roots=tuple(roots),
        victims=tuple(sorted(nodes - set(roots))),
        cycles=cycles,
        sentences=tuple(_sentences(waits, distance)),
        groups=tuple(sorted({wait.group.key for wait in waits if wait.blockers})),
    )


def _components(nodes: set[int], edges: Mapping[int, set[int]]) -> list[set[int]]:
    """Strongly connected components (Kosaraju's two passes, without recursion)."""
    order: list[int] = []
    seen: set[int] = set()
    for start in sorted(nodes):
        stack = [(start, iter(sorted(edges.get(start, ()))))] if start not in seen else []
        seen.add(start)
        while stack:
            node, targets = stack[-1]
            target = next((t for t in targets if t not in seen), None)
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
    components: list[set[int]] = []
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
        components.append(component)
    return components


def _distances(roots: set[int], edges: Mapping[int, set[int]]) -> dict[int, int]:
    """Steps from each rank to the nearest root."""
    distance = dict.fromkeys(roots, 0)
    frontier = roots
    while frontier:
        nearer = frontier
        frontier = {rank for rank, targets in edges.items() if rank not in distance and targets & nearer}
        distance.update(dict.fromkeys(frontier, max(distance.values()) + 1))
    return distance


def _sentences(waits: list[Wait], distance: Mapping[int, int]) -> list[str]:
    """One sentence for all ranks that wait in the same operation of the same group for the same ranks."""
    alike: dict[tuple[str, int, str, tuple[int, ...]], list[Wait]] = {}
    for wait in waits:
        if wait.blockers:
            key = (wait.group.label, wait.entry.seq, wait.entry.op, wait.blockers)
            alike.setdefault(key, []).append(wait)
    ordered = sorted(alike.items(), key=lambda item: (min(distance.get(w.rank, 0) for w in item[1]), item[1][0].rank))
    return [
        f"{rank_list([wait.rank for wait in same]).capitalize()} wait{'' if len(same) > 1 else 's'} in {op} "
        f"(collective {seq} of {label}) for {rank_list(list(blockers))}."
        for (label, seq, op, blockers), same in ordered
    ]
