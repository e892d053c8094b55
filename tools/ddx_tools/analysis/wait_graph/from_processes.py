"""Absences out of what hosts tell: those that do not answer, with their ranks."""

from __future__ import annotations

from ddx_tools.analysis.wait_graph.model import NodeCondition, NodeState, Source, WaitGraph, program_of
from ddx_tools.evidence.store import Store

_SILENT = ("unreachable", "silent")


def add_absent(graph: WaitGraph, store: Store) -> None:
    """Add the ranks of the one host that did not answer; of several nobody knows which ranks run where."""
    if not store.holds_any(("asked_hosts",)):
        return
    silent = store.query("SELECT coalesce(host, target) AS name FROM asked_hosts WHERE state IN ?", [list(_SILENT)])
    rows = store.query("SELECT rank, world_size FROM ranks WHERE rank IS NOT NULL AND role IN ('rank', 'gone')")
    size = max((row["world_size"] or 0 for row in rows), default=0)
    absent = set(range(size)) - {row["rank"] for row in rows}
    if len(silent) != 1 or not absent or not rows:
        return
    name = str(silent[0]["name"])
    graph.ranks |= set(range(size))
    for rank in absent:
        graph.hosts.setdefault(rank, name)
        gone = NodeCondition(NodeState.UNKNOWN, Source.PROCESSES, f"its host {name} does not answer")
        graph.note(program_of(rank), gone)
        graph.absent.add(rank)
        graph.unreported.add(rank)
