"""Ends and waits out of what ranks printed: who raised, exited or was killed, and who never entered what others report.

A line of a log is farther from the program than its stack or its record: it adds waits only of ranks of which neither
tells, and the ends of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddx_tools.analysis.wait_graph.model import (
    Condition,
    Edge,
    EdgeKind,
    Node,
    NodeKind,
    Operation,
    Source,
    State,
    Sure,
    WaitGraph,
    program_of,
)
from ddx_tools.handed_in import BASIS as HANDED_IN
from ddx_tools.model import Finding

_ENDS = ("rank.killed", "rank.raised", "rank.exited")
_NEARER = ("flight_records", "stacks")


def add_logs(graph: WaitGraph, findings: Sequence[Finding]) -> None:
    """Add what the findings about printed lines tell."""
    told = [finding for finding in findings if finding.attributes.get("basis") != HANDED_IN]
    for finding in told:
        if finding.code in _ENDS and finding.attributes.get("independent") is True:
            end_ranks(graph, finding, Source.LOGS)
    looked_at = (
        {edge.waiter.rank for edge in graph.edges} | graph.doing.keys() | {node.rank for node in graph.conditions}
    )
    for number, finding in enumerate(told):
        if finding.code == "collective.missing_ranks" and finding.attributes.get("basis") not in _NEARER:
            _add_missing(graph, finding, number, looked_at)


def end_ranks(graph: WaitGraph, finding: Finding, source: Source) -> None:
    """Note that ranks ended: whatever they were in, they wait for nobody."""
    gone = set(finding.ranks)
    graph.edges = [edge for edge in graph.edges if edge.waiter.rank not in gone]
    for rank in gone:
        graph.ranks.add(rank)
        ended = Condition(
            State.ENDED, source, finding.summary, tuple(finding.evidence[:2]), tuple(finding.locations[:2]), False
        )
        graph.conditions[program_of(rank)] = [ended]


def _add_missing(graph: WaitGraph, finding: Finding, number: int, looked_at: Iterable[int]) -> None:
    """A collective that some ranks wait in and others never entered."""
    facts = finding.attributes
    waiting, missing = set(facts.get("waiting") or ()), set(facts.get("missing") or finding.ranks)
    if not waiting or facts.get("tie") or (waiting | missing) & set(looked_at):
        return
    seq = facts.get("seq")
    words = f"{facts.get('operation') or 'a collective'} ({finding.group or 'a group that nothing names'})"
    node = Node(NodeKind.OPERATION, f"log {number} {finding.group} {seq}")
    graph.operations[node] = Operation(words, EdgeKind.COLLECTIVE, Source.LOGS)
    evidence = finding.evidence[0] if finding.evidence else None
    graph.ranks |= waiting | missing
    for rank in waiting:
        graph.wait(Edge(program_of(rank), node, EdgeKind.COLLECTIVE, Source.LOGS, evidence=evidence))
    elsewhere = set(facts.get("waiting_elsewhere") or ())
    for rank in missing:
        graph.wait(Edge(node, program_of(rank), EdgeKind.COLLECTIVE, Source.LOGS, Sure.INFERRED, evidence))
        if rank not in elsewhere:
            never = Condition(State.OUTSIDE, Source.LOGS, "never entered it", tuple(finding.evidence[-1:]))
            graph.note(program_of(rank), never)
