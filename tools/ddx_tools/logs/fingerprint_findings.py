"""Mismatch reports of TORCH_DISTRIBUTED_DEBUG=DETAIL: the words of each rank about itself, laid side by side."""

from __future__ import annotations

from collections import defaultdict

from ddx_tools.alignment.sides import part
from ddx_tools.logs.event import Event
from ddx_tools.logs.identity import Enclosing
from ddx_tools.logs.reported import distinct_places, part_of, reported_finding
from ddx_tools.model import Finding, Location, Severity
from ddx_tools.parsers.logs.fingerprint import Fingerprint, MismatchReport, parse_mismatch


def mismatch_findings(events: list[Event], enclosing: Enclosing) -> list[Finding]:
    """Findings of the reports in these messages, the same of all ranks together."""
    by_seq: dict[int | None, list[tuple[Event, MismatchReport]]] = defaultdict(list)
    for event in events:
        if report := parse_mismatch(event.row["text"]):
            by_seq[report.own.seq].append((event, report))
    return [
        _mismatch(aspect, seq, reports, enclosing)
        for seq, reports in by_seq.items()
        for aspect in ("operation", "shape", "dtype")
        if any(aspect in report.aspects for _, report in reports) or _own_words_differ(aspect, reports)
    ]


def _own_words_differ(aspect: str, reports: list[tuple[Event, MismatchReport]]) -> bool:
    """Of reports in which ranks speak of themselves alone."""
    return len({getattr(report.own, aspect) for _, report in reports if report.peer is None}) > 1


def _mismatch(
    aspect: str, seq: int | None, reports: list[tuple[Event, MismatchReport]], enclosing: Enclosing
) -> Finding:
    own = {report.own.rank: report.own for _, report in reports}
    prints: dict[int, Fingerprint] = {report.peer.rank: report.peer for _, report in reports if report.peer} | own
    sides = part({rank: str(getattr(prints[rank], aspect)) for rank in sorted(prints)})
    where: dict[int, Location] = {}
    for event, report in reports:
        if place := part_of(event, enclosing)[0]:
            where[report.own.rank] = place
    odd = prints[sides.deviating[0]]
    finding = reported_finding(
        f"collective.{aspect}_mismatch",
        Severity.FAILURE,
        [event for event, _ in reports],
        enclosing,
        {
            "seq": seq,
            "operation": odd.operation,
            "peer_operation": sides.groups[0][0] if aspect == "operation" and not sides.tie else None,
            "rank0": sides.deviating[0] == 0,
            "finished": None if aspect == "operation" else False,
            "only_by_peers": sorted(set(prints) - set(own)) or None,
            **sides.attributes(_ATTRIBUTE[aspect], len(prints)),
        },
        None,
    )
    finding.ranks = list(sides.deviating)
    finding.locations = distinct_places([where[rank] for rank in sides.deviating if rank in where])
    number = f" number {seq}" if seq is not None else ""
    finding.summary = f"Ranks differ in the {aspect} of collective{number}: {sides.words()}."[:600] + (
        " Neither side has a majority." if sides.tie else ""
    )
    return finding


_ATTRIBUTE = {"operation": "operations", "shape": "sizes", "dtype": "dtypes"}
