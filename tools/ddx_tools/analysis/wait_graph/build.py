"""Builds the wait graph from everything in a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddx_tools.analysis.wait_graph.from_logs import add_ends, add_logs, ends
from ddx_tools.analysis.wait_graph.from_nccl import add_finished, add_ras
from ddx_tools.analysis.wait_graph.from_processes import add_absent, add_file_locks
from ddx_tools.analysis.wait_graph.from_records import add_records
from ddx_tools.analysis.wait_graph.from_stacks import add_held_locks, add_stacks
from ddx_tools.analysis.wait_graph.model import WaitGraph
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding, Seat


def wait_graph(store: Store, seats: Mapping[int, Seat], findings: Sequence[Finding]) -> WaitGraph:
    """Build the graph of all waits in the last attempt of a job, from the rows of a store.

    `seats`: where ranks run. `findings`: what was found in the rows; they supply the ends of ranks and logged waits.
    """
    graph = WaitGraph(hosts={rank: seat.host for rank, seat in seats.items() if seat.host})
    graph.gone = {rank for finding, _ in ends(findings) for rank in finding.ranks}
    graph.ranks |= graph.gone
    add_absent(graph, store)
    add_records(graph, store)
    add_stacks(graph, store)
    add_held_locks(graph, findings)
    add_file_locks(graph, store)
    add_ends(graph, findings)
    add_logs(graph, findings)
    add_ras(graph, store)
    add_finished(graph, store)
    return graph
