"""Adds what hosts report about processes: ranks on hosts that do not answer, and waits for file locks."""

from __future__ import annotations

from dataclasses import replace

from ddx_tools.analysis.wait_graph.model import (
    EdgeKind,
    NodeCondition,
    NodeState,
    Source,
    Sure,
    WaitEdge,
    WaitGraph,
    program_of,
)
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Evidence

_SILENT = ("unreachable", "silent")


def add_absent(graph: WaitGraph, store: Store) -> None:
    """Add the ranks of the only host that did not answer; with several, it is unknown which ranks run where."""
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


def add_file_locks(graph: WaitGraph, store: Store) -> None:
    """Add the waits of ranks for ranks that hold a file lock."""
    if not store.holds_any(("file_locks",)):
        return
    rows = store.query(
        "WITH pids AS (SELECT DISTINCT host, pid, rank FROM stack_threads WHERE role = 'rank' AND rank IS NOT NULL) "
        "SELECT DISTINCT waiter.rank AS waiter, holder.rank AS holder, line, quote, source FROM file_locks "
        "JOIN pids AS waiter ON waiter.host = file_locks.host AND waiter.pid = waiter_pid "
        "JOIN pids AS holder ON holder.host = file_locks.host AND holder.pid = holder_pid "
        "WHERE waiter.rank <> holder.rank ORDER BY ALL"
    )
    for row in rows:
        evidence = Evidence(source=row["source"], line=row["line"], quote=row["quote"])
        ends = program_of(row["waiter"]), program_of(row["holder"])
        graph.wait(WaitEdge(*ends, EdgeKind.FILE_LOCK, Source.PROCESSES, Sure.SEEN, evidence))
        if doing := graph.doing.get(row["waiter"]):
            graph.doing[row["waiter"]] = replace(doing, says=f"{doing.says}, which rank {row['holder']} holds")
