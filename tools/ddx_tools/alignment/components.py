"""Strongly connected components."""

from __future__ import annotations

from collections.abc import Mapping, Set


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
