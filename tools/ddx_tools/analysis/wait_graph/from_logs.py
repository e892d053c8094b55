"""Adds exits and waits from printed lines: who raised, exited or was killed, and who never entered a collective.

A log line is farther from the program than a stack or a record: it adds waits only for ranks without either, but ends
for all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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
from ddx_tools.model.basis import HANDED_IN
from ddx_tools.model.diagnosis import Finding

_ENDS = ("rank.killed", "rank.raised", "rank.exited")
_NOT_PRINTED = ("flight_records", "stacks", "nccl_ras")
"""Findings with this basis are about waits that other sources of the graph add."""


def add_logs(graph: WaitGraph, findings: Sequence[Finding]) -> None:
    """Add the waits and exits shown by findings about printed lines."""
    told = [finding for finding in findings if finding.attributes.get("basis") != HANDED_IN]
    looked_at = (
        {edge.waiter.rank for edge in graph.edges} | graph.doing.keys() | {node.rank for node in graph.conditions}
    )
    for number, finding in enumerate(told):
        if finding.code == "collective.missing_ranks" and finding.attributes.get("basis") not in _NOT_PRINTED:
            _add_missing(graph, finding, number, looked_at)


def ends(findings: Sequence[Finding]) -> Iterator[tuple[Finding, Source]]:
    """Yield the findings that ranks ended by themselves, not as a consequence of another failure.

    Each comes with its source: processes if they are gone, logs if the ranks printed it.
    """
    for finding in findings:
        if finding.code == "rank.process_gone":
            yield finding, Source.PROCESSES
        elif finding.code in _ENDS and _is_its_own(finding):
            yield finding, Source.LOGS


def _is_its_own(finding: Finding) -> bool:
    """Whether a finding shows an end that is not a consequence of another one."""
    return finding.attributes.get("independent") is True and finding.attributes.get("basis") != HANDED_IN


def add_ends(graph: WaitGraph, findings: Sequence[Finding]) -> None:
    """Note which ranks ended, and so no longer wait for anything."""
    for finding, source in ends(findings):
        gone = set(finding.ranks)
        graph.edges = [edge for edge in graph.edges if edge.waiter.rank not in gone]
        for rank in gone:
            shown = tuple(finding.evidence[:2]), tuple(finding.locations[:2])
            ended = NodeCondition(NodeState.ENDED, source, finding.summary, *shown, moves=False)
            graph.conditions[program_of(rank)] = [ended]


def _add_missing(graph: WaitGraph, finding: Finding, number: int, looked_at: Iterable[int]) -> None:
    """Add a collective that some ranks wait in and others never entered."""
    facts = finding.attributes
    waiting, missing = set(facts.get("waiting") or ()), set(facts.get("missing") or finding.ranks)
    if not waiting or facts.get("tie") or (waiting | missing) & set(looked_at):
        return
    seq = facts.get("seq")
    words = f"{facts.get('operation') or 'a collective'} ({finding.group or 'an unnamed group'})"
    node = Node(NodeKind.OPERATION, f"log {number} {finding.group} {seq}")
    graph.operations[node] = Operation(words, EdgeKind.COLLECTIVE, Source.LOGS)
    evidence = finding.evidence[0] if finding.evidence else None
    graph.ranks |= waiting | missing
    for rank in waiting:
        graph.wait(WaitEdge(program_of(rank), node, EdgeKind.COLLECTIVE, Source.LOGS, evidence=evidence))
    elsewhere = set(facts.get("waiting_elsewhere") or ())
    for rank in missing:
        graph.wait(WaitEdge(node, program_of(rank), EdgeKind.COLLECTIVE, Source.LOGS, Sure.INFERRED, evidence))
        if rank not in elsewhere:
            never = NodeCondition(NodeState.OUTSIDE, Source.LOGS, "never entered it", tuple(finding.evidence[-1:]))
            graph.note(program_of(rank), never)
