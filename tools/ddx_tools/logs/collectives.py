"""What ranks report about their collectives: timeouts, lost connections, mismatches, peers that did not come.

A report is one rank's view: it says what that rank waited for, hardly ever who made it wait.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Any

from ddx_tools.formats.fingerprint import Fingerprint, MismatchReport, operation_name, parse_mismatch
from ddx_tools.logs.event import Event
from ddx_tools.logs.identity import Enclosing
from ddx_tools.model import Finding, Location, Severity, rank_list

_EVIDENCE_LIMIT = 8
_MISMATCH = "c10d_fingerprint_mismatch"
_MISSING = "c10d_monitored_barrier_missing"


def collective_findings(
    events: list[Event], signature_findings: dict[str, list[str]], known_ranks: set[int]
) -> list[Finding]:
    """Findings about collectives.

    `signature_findings`: codes that each signature raises; `known_ranks`: all ranks that the logs speak of.
    """
    enclosing = Enclosing(events)
    reports = [event for event in events if event.kind in ("gloo", "watchdog", "signature")]

    def raising(code: str) -> list[Event]:
        return [event for event in reports if code in signature_findings.get(event.row["code"], ())]

    return [
        *_timeouts(raising("collective.timeout_reported"), enclosing, known_ranks),
        *_lost(raising("collective.connection_lost"), enclosing),
        *_missing([event for event in reports if event.row["code"] == _MISSING], enclosing),
        *_mismatches([event for event in reports if event.row["code"] == _MISMATCH], enclosing),
    ]


def _timeouts(events: list[Event], enclosing: Enclosing, known_ranks: set[int]) -> list[Finding]:
    groups: dict[tuple[Any, ...], list[Event]] = defaultdict(list)
    for event in events:
        facts = event.details
        operation = facts.get("operation")
        operation = operation_name(operation) if operation else _operation(event, enclosing)
        seq = int(facts["seq"]) if facts.get("seq") else None
        timeout = int(facts["timeout_ms"]) if facts.get("timeout_ms") else None
        groups[seq, operation, timeout, facts.get("group")].append(event)
    findings = []
    for (seq, operation, timeout, group), reports in _without_repeats(groups):
        what = f"{operation or 'a collective'}{f' (sequence number {seq})' if seq is not None else ''}"
        limit = f" after {timeout} ms" if timeout is not None else ""
        reporters = {rank for event in reports for rank in event.ranks}
        elapsed = [int(e.details["elapsed_ms"]) for e in reports if e.details.get("elapsed_ms")]
        attributes = {
            "operation": operation,
            "seq": seq,
            "timeout_ms": timeout,
            "elapsed_ms": max(elapsed, default=None),
            "numel_in": next((int(e.details["numel_in"]) for e in reports if e.details.get("numel_in")), None),
            "not_reporting": (sorted(known_ranks - reporters) or None) if reporters else None,
            "direction": next((e.details["direction"] for e in reports if e.details.get("direction")), None),
        }
        findings.append(
            _finding("collective.timeout_reported", Severity.WARNING, reports, enclosing, attributes, group)
        )
        findings[-1].summary = f"{_who(findings[-1].ranks)} reported that {what} timed out{limit}."
    return findings


def _without_repeats(groups: dict[tuple[Any, ...], list[Event]]) -> list[tuple[tuple[Any, ...], list[Event]]]:
    """A report is repeated with and without its group: what names none belongs to the only one that is named."""
    merged = dict(groups)
    for key in groups:
        named = [other for other in groups if other[:-1] == key[:-1] and other[-1] is not None]
        if key[-1] is None and len(named) == 1:
            merged[named[0]] = merged.pop(key) + merged[named[0]]
    return list(merged.items())


def _lost(events: list[Event], enclosing: Enclosing) -> list[Finding]:
    if not events:
        return []
    operations = sorted({operation for event in events if (operation := _operation(event, enclosing))})
    signatures = sorted({str(event.row["code"]) for event in events})
    finding = _finding(
        "collective.connection_lost",
        Severity.NOTICE,
        events,
        enclosing,
        {"operations": operations or None, "signatures": signatures},
        None,
    )
    doing = f" in {', '.join(operations)}" if operations else ""
    why = "usually the peer ended or gave up first"
    finding.summary = f"{_who(finding.ranks)} lost the connection to a peer{doing}; {why}."
    return [finding]


def _missing(events: list[Event], enclosing: Enclosing) -> list[Finding]:
    # Rank 0 says it in its log and in its exception.
    reports: dict[tuple[int, ...], list[Event]] = defaultdict(list)
    for event in events:
        reports[tuple(int(number) for number in re.findall(r"\d+", event.details["missing"]))].append(event)
    findings = []
    for missing, told in reports.items():
        operation = next((found for event in told if (found := _operation(event, enclosing))), None)
        reporters = sorted({rank for event in told for rank in event.ranks})
        facts = {
            "operation": operation,
            "reported_by": reporters,
            "timeout_ms": int(told[0].details["timeout_ms"]),
        }
        finding = _finding("collective.missing_ranks", Severity.FAILURE, told, enclosing, facts, None)
        # The places are those of the rank that waited, not of the missing ones.
        finding.ranks, finding.locations = list(missing), []
        where = operation or "a monitored barrier"
        finding.summary = f"{_who(list(missing))} did not arrive at {where}, as rank 0 reports."
        findings.append(finding)
    return findings


# --- mismatches, from the words of each rank about itself


def _mismatches(events: list[Event], enclosing: Enclosing) -> list[Finding]:
    by_seq: dict[int | None, list[tuple[Event, MismatchReport]]] = defaultdict(list)
    for event in events:
        if report := parse_mismatch(event.row["text"]):
            by_seq[report.own.seq].append((event, report))
    return [
        _mismatch(aspect, seq, reports, enclosing)
        for seq, reports in by_seq.items()
        for aspect in ("operation", "shape", "dtype")
        if any(aspect in report.aspects for _, report in reports)
    ]


def _mismatch(
    aspect: str, seq: int | None, reports: list[tuple[Event, MismatchReport]], enclosing: Enclosing
) -> Finding:
    own = {report.own.rank: report.own for _, report in reports}
    prints: dict[int, Fingerprint] = {report.peer.rank: report.peer for _, report in reports} | own
    values = {rank: getattr(prints[rank], aspect) for rank in sorted(prints)}
    odd = _minority(values)
    where: dict[int, Location] = {}
    for event, report in reports:
        if place := _part(event, enclosing)[0]:
            where[report.own.rank] = place
    finding = _finding(
        f"collective.{aspect}_mismatch",
        Severity.FAILURE,
        [event for event, _ in reports],
        enclosing,
        {
            "seq": seq,
            _ATTRIBUTE[aspect]: {str(rank): value for rank, value in values.items()},
            "operation": next(iter(own.values())).operation if aspect != "operation" else None,
            "minority": odd,
            "only_by_peers": sorted(set(prints) - set(own)) or None,
        },
        None,
    )
    finding.ranks = sorted(values)
    finding.locations = _distinct([where[rank] for rank in odd or sorted(where) if rank in where])
    said = "; ".join(f"{rank_list(ranks)}: {value}" for value, ranks in _by_value(values).items())
    number = f" number {seq}" if seq is not None else ""
    finding.summary = f"Ranks differ in the {aspect} of collective{number}: {said}."[:600]
    return finding


_ATTRIBUTE = {"operation": "operations", "shape": "sizes", "dtype": "dtypes"}


def _minority(values: dict[int, Any]) -> list[int]:
    """The ranks outside the most common value; none if there is no such value."""
    counts = Counter(values.values()).most_common(2)
    if len(counts) < 2 or counts[0][1] == counts[1][1]:
        return []
    return [rank for rank, value in values.items() if value != counts[0][0]]


def _by_value(values: dict[int, Any]) -> dict[Any, list[int]]:
    grouped: dict[Any, list[int]] = {}
    for rank, value in values.items():
        grouped.setdefault(value, []).append(rank)
    return grouped


# --- all of them


def _finding(
    code: str,
    severity: Severity,
    events: list[Event],
    enclosing: Enclosing,
    attributes: dict[str, Any],
    group: str | None,
) -> Finding:
    places = [place for event in events if (place := _part(event, enclosing)[0])]
    attempts = sorted({event.attempt for event in events} - {0})
    facts = {**attributes, "basis": "log", "attempts": attempts or None}
    return Finding(
        code=code,
        severity=severity,
        ranks=sorted({rank for event in events for rank in event.ranks}),
        hosts=sorted({event.row["host"] for event in events if event.row["host"]}),
        group=group,
        summary="",
        evidence=[event.evidence for event in events[:_EVIDENCE_LIMIT]],
        locations=_distinct(places),
        attributes={name: value for name, value in facts.items() if value is not None},
    )


def _operation(event: Event, enclosing: Enclosing) -> str | None:
    return _part(event, enclosing)[1]


def _part(event: Event, enclosing: Enclosing) -> tuple[Location | None, str | None]:
    around = enclosing.of(event)
    return around.part_at(event.row["source_line"]) if around else (None, None)


def _distinct(places: list[Location]) -> list[Location]:
    return list({(place.file, place.line): place for place in places}.values())[:_EVIDENCE_LIMIT]


def _who(ranks: list[int]) -> str:
    return rank_list(ranks).capitalize() if ranks else "A rank that the log does not name"
