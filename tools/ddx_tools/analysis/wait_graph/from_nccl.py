"""Adds waits from NCCL's RAS counts: ranks that launched more in a communicator without progress wait for the others.

RAS only counts launches: it does not know what else is pending on a rank that is behind.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddx_tools.analysis.nccl.process_rows import evidence
from ddx_tools.analysis.nccl.ras_polls import RasHold, RasPolls, ras_polls
from ddx_tools.analysis.wait_graph.model import (
    EdgeKind,
    Node,
    NodeCondition,
    NodeKind,
    NodeState,
    Operation,
    Source,
    Sure,
    WaitEdge,
    WaitGraph,
    program_of,
)
from ddx_tools.evidence.store import Store


def add_ras(graph: WaitGraph, store: Store) -> None:
    """Add the waits in communicators without progress; nothing unless the ranks of all their processes are known.

    RAS is farther from the program than records, stacks and processes, but nearer than logs.
    """
    if not store.holds_any(("nccl_ras",)):
        return
    polls = store.derived(ras_polls)
    solved = polls.solved
    if solved is None or polls.moving:
        return
    graph.ranks |= set(polls.ranks.values())
    for hold in solved.holds:
        _add(graph, polls, hold)
    for rank in polls.ranks_of(sorted(solved.roots)):
        said = "it launched fewer collectives than its peers, and RAS shows it waiting for nothing"
        graph.note(program_of(rank), NodeCondition(NodeState.OUTSIDE, Source.RAS, said))


def _add(graph: WaitGraph, polls: RasPolls, hold: RasHold) -> None:
    members = sorted(hold.of.seats.values())
    ranks = [polls.ranks[seat] for seat in members if seat in polls.ranks]
    if len(ranks) < len(members):
        return
    node = Node(NodeKind.OPERATION, f"ras {hold.of.hash} {hold.op}")
    graph.operations[node] = Operation(
        f"{hold.op} ({hold.of.label})", EdgeKind.COLLECTIVE, Source.RAS, frozenset(ranks), called_ahead=True
    )
    quoted = next((evidence(row) for row in hold.of.rows[-1] if row["status"] == "MISMATCH"), None)

    def add(numbers: Sequence[int], certainty: Sure) -> None:
        for rank in polls.ranks_of(numbers):
            graph.wait(WaitEdge(node, program_of(rank), EdgeKind.COLLECTIVE, Source.RAS, certainty))

    for rank in polls.ranks_of(list(hold.waiting)):
        graph.wait(WaitEdge(program_of(rank), node, EdgeKind.COLLECTIVE, Source.RAS, evidence=quoted))
    add(hold.blockers, Sure.SEEN)
    add(hold.unknown, Sure.POSSIBLE)
