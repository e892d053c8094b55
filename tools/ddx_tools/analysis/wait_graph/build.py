"""The wait graph of everything that a store holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddx_tools.analysis.wait_graph.from_logs import add_logs
from ddx_tools.analysis.wait_graph.from_processes import add_absent, add_ends
from ddx_tools.analysis.wait_graph.from_records import add_records
from ddx_tools.analysis.wait_graph.from_stacks import add_stacks
from ddx_tools.analysis.wait_graph.model import WaitGraph
from ddx_tools.model import Finding, Seat
from ddx_tools.store import Store


def wait_graph(store: Store, seats: Mapping[int, Seat], findings: Sequence[Finding]) -> WaitGraph:
    """All waits of the last attempt of a job that the rows of a store tell of.

    `seats`: where ranks run. `findings`: what was found in the rows; of them the ends of ranks are taken.
    """
    graph = WaitGraph(hosts={rank: seat.host for rank, seat in seats.items() if seat.host})
    add_absent(graph, store)
    add_records(graph, store)
    add_stacks(graph, store)
    add_ends(graph, findings)
    add_logs(graph, findings)
    return graph
