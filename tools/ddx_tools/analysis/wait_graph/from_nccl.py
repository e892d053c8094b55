"""Adds waits in communicators without progress: from NCCL's RAS, of ranks that launched more than the others; from NCCL
Inspector, of ranks that finished more.

RAS only counts launches, and Inspector what finished: neither knows what else is pending on a rank that is behind.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddx_tools.analysis.nccl.finished import InspectedCommunicator, finished_by_ranks
from ddx_tools.analysis.nccl.operation_names import operation_name
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


def add_finished(graph: WaitGraph, store: Store) -> None:
    """Add the waits for ranks that have not finished what their peers have, in communicators without progress.

    Whether the peers entered the next operation is inferred: nothing finished in the communicator since.
    """
    if not store.holds_any(("nccl_finished",)):
        return
    found = store.derived(finished_by_ranks)
    for one in found.lagging:
        ranks, late = found.ranks_of(one, list(one.members)), found.ranks_of(one, one.behind)
        if not ranks or not one.goes_on:
            continue
        graph.ranks |= set(found.ranks.values())
        node = _operation_of(graph, one, ranks)
        for rank in ranks:
            if rank not in late:
                graph.wait(WaitEdge(program_of(rank), node, EdgeKind.COLLECTIVE, Source.INSPECTOR, Sure.INFERRED))
        says = "it has not finished what its peers have, and finished nothing after that"
        for member in one.behind:
            rank = found.ranks[one.seats[member]]
            quoted = (evidence(one.members[member].row_of(one.operation)),)
            graph.wait(WaitEdge(node, program_of(rank), EdgeKind.COLLECTIVE, Source.INSPECTOR))
            graph.note(program_of(rank), NodeCondition(NodeState.STANDS_STILL, Source.INSPECTOR, says, quoted))


def _operation_of(graph: WaitGraph, one: InspectedCommunicator, ranks: Sequence[int]) -> Node:
    name = operation_name(one.operation)
    node = Node(NodeKind.OPERATION, f"inspector {one.hash} {name}")
    graph.operations[node] = Operation(
        f"{name} ({one.label})", EdgeKind.COLLECTIVE, Source.INSPECTOR, frozenset(ranks), called_ahead=True
    )
    return node
