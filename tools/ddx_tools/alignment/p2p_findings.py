"""Findings about sends and receives that wait for their other end."""

from __future__ import annotations

from collections.abc import Sequence

from ddx_tools.alignment.records import Records
from ddx_tools.alignment.sides import locations
from ddx_tools.alignment.wait_graph import Graph
from ddx_tools.alignment.waits import Hold
from ddx_tools.model import Finding, Severity, rank_list

_MAX_EVIDENCE = 8


def point_to_point(records: Records, graph: Graph | None) -> list[Finding]:
    """A circle of ranks that wait for each other in such operations only, or operations that have no partner.

    What waits for a rank that is held up itself is a consequence, and is told by the chain of waits.
    """
    if graph is None:
        return []
    transfers = [hold for hold in graph.holds if hold.transfer is not None]
    circle = set(graph.circle)
    if graph.circle_of_transfers and circle == graph.roots.keys():
        inside = [hold for hold in transfers if circle & hold.waiting.keys() and circle & set(hold.blockers)]
        return [_finding(records, "p2p.circular_wait", inside, f"{rank_list(circle).capitalize()} wait for each other")]
    lacking = [hold for hold in transfers if hold.lacking and {*hold.lacking, *hold.waiting} & graph.roots.keys()]
    return [
        _finding(
            records,
            "p2p.unmatched",
            [hold],
            f"{hold.op} of {rank_list(list(hold.waiting))} has no partner on {rank_list(list(hold.lacking))}",
        )
        for hold in lacking[:_MAX_EVIDENCE]
    ]


def _finding(records: Records, code: str, holds: Sequence[Hold], text: str) -> Finding:
    transfers = [hold.transfer for hold in holds if hold.transfer is not None]
    entries = records.entries_of([(each.rank, each.group_id, each.record_id) for each in transfers])
    return Finding(
        code=code,
        severity=Severity.FAILURE,
        ranks=sorted({each.rank for each in transfers}),
        group=holds[0].group.label,
        summary=f"{text} ({holds[0].group.label}).",
        evidence=[entry.evidence() for entry in entries[:_MAX_EVIDENCE]],
        locations=locations(entries),
        attributes={
            "operations": {str(entry.rank): f"{entry.op} {entry.peer}" for entry in entries},
            "operation": entries[0].op,
            "peers": {str(each.rank): each.peer for each in transfers},
            "basis": "flight_records",
        },
    )
