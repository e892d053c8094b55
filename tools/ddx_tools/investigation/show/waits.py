"""The wait graph as lines for a person, and as a Graphviz graph. Ranks that wait the same way share a line or node."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from ddx_tools.analysis.wait_graph.model import Node, NodeKind, Sure, WaitEdge, WaitGraph, program_of, ranks_of
from ddx_tools.analysis.wait_graph.roots import nearness
from ddx_tools.diagnosis.waits import Waits
from ddx_tools.model.diagnosis import rank_list
from ddx_tools.model.grouping import gathered

_MOST_LINES = 40
_ID = re.compile(r" \d+$")
_ENDS = re.compile(r" \d+->\d+")
"""The two ranks in the name of a transfer."""


@dataclass(frozen=True)
class _Alike:
    """Edges of nodes that wait the same way."""

    waiters: tuple[Node, ...]
    awaited: tuple[Node, ...]
    first: WaitEdge
    wait_s: float | None


def wait_lines(waits: Waits, rank: int | None = None) -> list[str]:
    """The roots of the waits and all waits (or those from one rank on) as lines, with source and certainty."""
    graph, roots = waits.graph, waits.roots
    edges = _leading_on(graph, rank)
    if rank is not None and rank not in graph.ranks | ranks_of(edge.waiter for edge in graph.edges):
        return [f"no evidence mentions rank {rank}"]
    if not edges:
        return ["no rank is known to wait" if rank is None else f"rank {rank} is not known to wait for anything"]
    ends = [f"{rank_list(list(root.ranks))} ({root.state.replace('_', ' ')})" for root in roots.roots]
    if roots.clear:
        lines = [f"all waits lead to: {'; '.join(ends)}"]
    else:
        among = f"; possibly {'; '.join(ends)}" if ends else ""
        lines = [f"the root of the waits is unknown: {roots.open or 'nothing shows whom the ranks wait for'}{among}"]
    within = [edge for edge in edges if edge.waiter not in graph.operations and edge.awaited not in graph.operations]
    told = [*_of_operations(waits, edges), *(_line(graph, one) for one in _alike(graph, within))]
    return lines + told[:_MOST_LINES] + ([f"… and {len(told) - _MOST_LINES} more"] if len(told) > _MOST_LINES else [])


def _of_operations(waits: Waits, edges: Sequence[WaitEdge]) -> list[str]:
    """One line for all operations of one name and number, or all transfers of one kind; nearest to a root first."""
    graph, near = waits.graph, nearness(waits.graph, waits.roots)
    nodes = {node for edge in edges for node in (edge.waiter, edge.awaited) if node in graph.operations}
    far = 1 + max(near.values(), default=0)
    named = gathered(
        ((near.get(node, far), _ENDS.sub("", graph.operations[node].words)), node) for node in sorted(nodes)
    )
    inside = gathered((edge.awaited, edge) for edge in edges)
    out = gathered((edge.waiter, edge) for edge in edges)
    lines = []
    for (_, words), together in sorted(named.items()):
        into = [edge for node in together for edge in inside.get(node, ())]
        beyond = [edge for node in together for edge in out.get(node, ())]
        lines.append(_operation(graph, words, together, into, beyond))
    return lines


def _operation(
    graph: WaitGraph, words: str, nodes: Sequence[Node], inside: Sequence[WaitEdge], out: Sequence[WaitEdge]
) -> str:
    """`ranks 0-1, 3 (thread saver) wait in barrier at saver.py:34 for rank 2  [stacks, inferred]`."""
    waiters = [edge.waiter for edge in inside]
    threads = sorted({_plain(node) for node in waiters if node.name})
    through = f" (thread {', '.join(threads)})" if threads else ""
    surest = min((edge.certainty for edge in out), key=list(Sure).index, default=None)
    awaited = ranks_of(edge.awaited for edge in out if edge.certainty is surest)
    waits = [edge.wait_s for edge in inside if edge.wait_s is not None]
    facts = [graph.operations[nodes[0]].source.replace("_", " ")]
    if surest is not None:
        facts.append(str(surest))
    else:
        differ = {mismatch.aspect for mismatch in graph.mismatches if mismatch.at in nodes and mismatch.decided}
        facts.append(f"members differ in {differ.pop()}" if differ else "all members are in it")
    facts += [f"for {max(waits):.0f} s"] if waits else []
    times = f" ({len(nodes)} times)" if len(nodes) > 1 else ""
    whom = (
        f" for {'one of ' if surest is Sure.POSSIBLE and len(awaited) > 1 else ''}{rank_list(awaited)}" if out else ""
    )
    verb = "wait" if len(ranks_of(waiters)) > 1 else "waits"
    return f"{rank_list(ranks_of(waiters))}{through} {verb} in {words}{times}{whom}  [{', '.join(facts)}]"


def dot_lines(waits: Waits, rank: int | None = None) -> list[str]:
    """The waits as a graph in Graphviz's language; roots are filled, waits that are only possible are dashed."""
    graph = waits.graph
    told = _alike(graph, _leading_on(graph, rank))
    roots = {program_of(each) for each in waits.roots.ranks}
    names: dict[tuple[Node, ...], str] = {}

    def name(nodes: tuple[Node, ...]) -> str:
        return names.setdefault(nodes, f"n{len(names)}")

    arrows = []
    for one in told[: 4 * _MOST_LINES]:
        style = ', style="dashed"' if one.first.certainty is Sure.POSSIBLE else ""
        arrows.append(f'  {name(one.waiters)} -> {name(one.awaited)} [label="{one.first.kind}"{style}];')
    boxes = [
        f'  {key} [label="{_escaped(_words(graph, nodes))}"'
        f"{', shape=box' if nodes[0] in graph.operations else ''}{', style=filled' if set(nodes) <= roots else ''}];"
        for nodes, key in names.items()
    ]
    return ["digraph waits {", "  rankdir=LR;", *boxes, *arrows, "}"]


def _leading_on(graph: WaitGraph, rank: int | None) -> list[WaitEdge]:
    """All edges, or those on paths from one rank."""
    if rank is None:
        return graph.edges
    out = gathered((edge.waiter, edge) for edge in graph.edges)
    pending = [node for node in out if node.rank == rank]
    seen, found = set(pending), []
    while pending:
        for edge in out.get(pending.pop(), ()):
            found.append(edge)
            if edge.awaited not in seen:
                seen.add(edge.awaited)
                pending.append(edge.awaited)
    return found


def _alike(graph: WaitGraph, edges: Sequence[WaitEdge]) -> list[_Alike]:
    """Group the edges whose waiters wait for the same node, or for the corresponding node of their own rank."""
    awaited_by = gathered(((edge.waiter, edge.kind, edge.source, edge.certainty), edge) for edge in edges)
    like: dict[object, list[list[WaitEdge]]] = {}
    for (waiter, *rest), mine in awaited_by.items():
        ends: Set[object] = frozenset(
            _plain(edge.awaited) if edge.awaited.rank == waiter.rank else edge.awaited for edge in mine
        )
        own = waiter if waiter in graph.operations else _plain(waiter)
        like.setdefault((waiter.kind, own, *rest, ends), []).append(mine)
    found = []
    for together in like.values():
        waiters = tuple(dict.fromkeys(edge.waiter for mine in together for edge in mine))
        awaited = tuple(dict.fromkeys(edge.awaited for mine in together for edge in mine))
        waits = [edge.wait_s for mine in together for edge in mine if edge.wait_s is not None]
        found.append(_Alike(waiters, awaited, together[0][0], max(waits, default=None)))
    return sorted(found, key=lambda one: (one.waiters[0] in graph.operations, -len(one.waiters), one.waiters))


def _line(graph: WaitGraph, one: _Alike) -> str:
    since = "" if one.wait_s is None else f", for {one.wait_s:.0f} s"
    how = f"{one.first.kind.replace('_', ' ')}, {one.first.source.replace('_', ' ')}, {one.first.certainty}{since}"
    return f"{_words(graph, one.waiters)} -> {_words(graph, one.awaited)}  [{how}]"


def _words(graph: WaitGraph, nodes: Sequence[Node]) -> str:
    first = nodes[0]
    if first in graph.operations:
        return "; ".join(dict.fromkeys(graph.operations[node].words for node in nodes if node in graph.operations))
    who = rank_list(ranks_of(nodes)) if first.rank >= 0 else first.name
    if first == program_of(first.rank):
        return who
    kind: Mapping[NodeKind, str] = {NodeKind.THREAD: "thread", NodeKind.CHILD: "process", NodeKind.DEVICE: "device"}
    return f"{kind.get(first.kind, str(first.kind))} {_plain(first)} of {who}"


def _plain(node: Node) -> str:
    """The name without the number that distinguishes it from the same node on other ranks."""
    return _ID.sub("", node.name)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")[:200]
