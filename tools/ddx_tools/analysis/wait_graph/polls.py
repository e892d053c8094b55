"""Adds waits of ranks that poll: each sleeps in a loop until something exists, such as a file that a peer writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddx_tools.analysis.collectives.stacks.divergence import ProgramTexts
from ddx_tools.analysis.wait_graph.model import (
    EdgeKind,
    Node,
    NodeKind,
    Operation,
    Source,
    Sure,
    WaitEdge,
    WaitGraph,
    program_of,
)
from ddx_tools.analysis.wait_graph.threads import Thread

_STANDS_S = 10.0
"""A rank without progress for this long, while all others poll, is the one that they poll for."""


def add_polls(graph: WaitGraph, threads: Mapping[int, Sequence[Thread]], texts: ProgramTexts) -> None:
    """Add the waits of ranks that all sleep in one loop of the program for ranks that ended or make no progress.

    About other ranks nothing is known: they may be at work, and a stack does not show which rank is polled for.
    """
    mains = [thread for mine in threads.values() for thread in mine if thread.node == program_of(thread.node.rank)]
    alive = [thread for thread in mains if thread.node.rank not in graph.gone]
    polling = [thread for thread in alive if _polls(thread, texts)]
    still = [each for each in alive if each not in polling]
    awaited = graph.gone | {each.node.rank for each in still}
    if not awaited or any(_may_work(each) for each in still) or 2 * len(awaited) >= len(alive) + len(graph.gone):
        return
    if len({each.user_stack for each in polling}) > 1:
        return
    place = polling[0].location()
    node = Node(NodeKind.OPERATION, f"poll {polling[0].user_stack}")
    words = f"a polling loop{f' at {place.short()}' if place else ''}"
    graph.operations[node] = Operation(words, EdgeKind.POLL, Source.STACKS)
    for thread in polling:
        graph.wait(WaitEdge(thread.node, node, EdgeKind.POLL, Source.STACKS, Sure.SEEN, thread.evidence()))
    for rank in sorted(awaited):
        graph.wait(WaitEdge(node, program_of(rank), EdgeKind.POLL, Source.STACKS, Sure.INFERRED))


def _may_work(thread: Thread) -> bool:
    return thread.row["moved"] is not False or (thread.row.get("still_s") or 0.0) < _STANDS_S


def _polls(thread: Thread, texts: ProgramTexts) -> bool:
    """Whether a thread sleeps at a line inside a loop of its function."""
    if thread.activity != "sleep" or not thread.user_stack:
        return False
    file, line, _ = thread.user_stack[-1]
    text = texts.of(file)
    return text is not None and text.repeats(line)
