"""Adds waits from flight records: who is in which operation, which members are not, and what state these are in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ddx_tools.analysis.collectives.records.analyse import group_mismatches, root_mismatches
from ddx_tools.analysis.collectives.records.comparable import hides_disagreement
from ddx_tools.analysis.collectives.records.exchanges import exchange_mismatches
from ddx_tools.analysis.collectives.records.recorded_graph import odd_of_circle
from ddx_tools.analysis.collectives.records.solved import Solved, solved
from ddx_tools.analysis.collectives.records.waits import Recorded
from ddx_tools.analysis.collectives.wait_solver import components
from ddx_tools.analysis.wait_graph.model import (
    CallMismatch,
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
from ddx_tools.model.diagnosis import Finding, rank_list

_STATES = {
    "idle": NodeState.OUTSIDE,
    "not_started": NodeState.DEVICE_BEHIND,
    "finished_by_peers": NodeState.STANDS_STILL,
    "unseen": NodeState.UNSEEN,
}
_WORDS = {
    NodeState.OUTSIDE: "it has no pending operation of its own",
    NodeState.DEVICE_BEHIND: "it called the operation, but its GPU never started it",
    NodeState.STANDS_STILL: "it has calls pending that its peers finished long ago",
    NodeState.UNSEEN: "its flight record does not show what its program is doing",
    NodeState.ELSEWHERE: "it took a different path from its peers",
}


def add_records(graph: WaitGraph, store: Store) -> None:
    """Add the waits in the flight records of a store; nothing if there are no records."""
    if not store.holds_any(("fr_dumps",)):
        return
    found = store.derived(solved)
    if not found.records.ranks:
        return
    graph.ranks |= found.records.ranks.keys() | found.records.absent
    graph.lone_source = len(found.records.ranks) == 1
    deviating = found.deviating_ranks
    holds = found.certain_holds
    for number, hold in enumerate(holds):
        _add_hold(graph, hold, number)
    for rank in found.records.ranks:
        state = NodeState.ELSEWHERE if rank in deviating else _STATES.get(found.fronts.status[rank])
        if state is not None:
            graph.note(program_of(rank), NodeCondition(state, Source.RECORDS, _WORDS[state]))
    graph.of_other_runs |= found.records.of_other_runs
    unread = _unread(store)
    for rank in found.records.absent:
        state = NodeState.UNREAD if rank in unread else NodeState.UNKNOWN
        graph.note(program_of(rank), NodeCondition(state, Source.RECORDS, "it left no flight record"))
        if state is NodeState.UNKNOWN:
            graph.unreported.add(rank)
    graph.mismatches += _mismatches(found, holds, graph)
    if any(hold.transfer is not None for hold in holds):
        graph.off_path |= found.records.off_path


def _unread(store: Store) -> set[int]:
    """Ranks for which a submitted file is not a usable record."""
    rows = store.query(
        "SELECT DISTINCT rank FROM materials WHERE rank IS NOT NULL "
        "AND (why_not_read IS NOT NULL OR list_contains(string_split(kinds, ', '), 'dump')) "
        "AND rank NOT IN (SELECT rank FROM fr_dumps WHERE rank IS NOT NULL)"
    )
    return {row["rank"] for row in rows}


def _node_of(hold: Recorded, number: int) -> Node:
    """The node of an operation; transfers, and operations entered by a rank's own deviation, get separate nodes."""
    own = number if hold.transfer is not None or hold.by_deviation or hold.seq is None else -1
    return Node(NodeKind.OPERATION, f"{hold.group.key} {hold.seq} {hold.op}", attempt=own)


def _add_hold(graph: WaitGraph, hold: Recorded, number: int) -> None:
    node = _node_of(hold, number)
    kind = EdgeKind.TRANSFER if hold.transfer is not None else EdgeKind.COLLECTIVE
    place = "" if hold.seq is None else f"collective {hold.seq} of "
    graph.operations[node] = Operation(
        f"{hold.op} ({place}{hold.group.label})",
        kind,
        Source.RECORDS,
        None if hold.group.members is None else frozenset(hold.group.members),
        unsettled=bool(hold.too_early),
        complete=hold.is_complete,
        called_ahead=not hold.fronts,
        hides_root=hides_disagreement(hold.op),
    )
    if hold.by_deviation:
        return  # Its own deviation put it there: it waits for no rank.
    entries = {entry.rank: entry for entry in hold.entries()}
    for rank, wait_s in hold.waiting.items():
        evidence = entries[rank].evidence() if rank in entries else None
        graph.wait(WaitEdge(program_of(rank), node, kind, Source.RECORDS, evidence=evidence, wait_s=wait_s))
    graph.edges += _to(node, kind, hold.blockers, Sure.SEEN)
    graph.edges += _to(node, kind, hold.unknown, Sure.POSSIBLE)


def _to(node: Node, kind: EdgeKind, ranks: Iterable[int], certainty: Sure) -> Iterator[WaitEdge]:
    return (WaitEdge(node, program_of(rank), kind, Source.RECORDS, certainty) for rank in ranks)


def _mismatches(found: Solved, holds: list[Recorded], graph: WaitGraph) -> list[CallMismatch]:
    records = found.records
    told = [
        *exchange_mismatches(records, holds),
        *root_mismatches(records, holds),
        *group_mismatches(records, holds),
        *(each for matched, shifted in found.matched.values() for each in (*matched, *shifted)),
    ]
    numbered = sorted(enumerate(holds), key=lambda each: each[1].by_deviation)
    differing = [_mismatch(each, _operation_of(each, numbered)) for each in told]
    return differing + list(_odd_ones(found, holds))


def _operation_of(finding: Finding, numbered: list[tuple[int, Recorded]]) -> Node | None:
    """The operation in which a finding's ranks differ, as seen by their peers; groups of one kind share a label."""
    seq = finding.attributes.get("seq")
    for number, hold in numbered:
        same = hold.group.label == finding.group and hold.seq == seq and hold.transfer is None
        if same and set(finding.ranks) <= set(hold.group.ranks()):
            return _node_of(hold, number)
    return None


def _mismatch(finding: Finding, at: Node | None) -> CallMismatch:
    return CallMismatch(
        finding.code.removeprefix("collective.").removesuffix("_mismatch"),
        at,
        tuple(finding.ranks),
        not finding.attributes["tie"],
        Source.RECORDS,
        finding.summary,
        tuple(finding.evidence),
        tuple(finding.locations),
    )


def _odd_ones(found: Solved, holds: list[Recorded]) -> Iterator[CallMismatch]:
    """For each circle of ranks, a mismatch that names the ranks deviating from all others."""
    edges: dict[int, set[int]] = {}
    for number, hold in enumerate(holds, 1):
        edges[-number] = set(hold.blockers)
        for rank in hold.waiting:
            edges.setdefault(rank, set()).add(-number)
        for rank in hold.blockers:
            edges.setdefault(rank, set())
    for component in components(edges):
        circle = {node for node in component if node >= 0}
        if len(circle) > 1 and (odd := odd_of_circle(found.records, circle, holds))[0]:
            ranks, told_by = odd
            apart = f"{rank_list(ranks)} took a different path from the others"
            says = f"{rank_list(circle).capitalize()} wait for each other, and {apart}"
            yield CallMismatch(f"circle_{told_by}", None, tuple(sorted(ranks)), True, Source.RECORDS, f"{says}.")
