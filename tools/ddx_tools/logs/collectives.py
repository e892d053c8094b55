"""What ranks report about their collectives: timeouts, lost connections, mismatches, peers that did not come.

A report is one rank's view: it says what that rank waited for, hardly ever who made it wait.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from ddx_tools.logs.crowd import Crowd, read_crowd
from ddx_tools.logs.desync import desync_reports
from ddx_tools.logs.event import Event
from ddx_tools.logs.fingerprint_findings import mismatch_findings
from ddx_tools.logs.identity import Enclosing
from ddx_tools.logs.printed_records import printed_findings
from ddx_tools.logs.rank_contexts import RankContexts
from ddx_tools.logs.reported import by_ranks, operation_of, reported_finding, who_reports
from ddx_tools.logs.transfer_findings import transfer_findings
from ddx_tools.logs.watchdog_findings import watchdog_findings
from ddx_tools.logs.watchdog_places import Places
from ddx_tools.logs.watchdog_reports import Report, read_reports
from ddx_tools.logs.watchdog_table import group_tables
from ddx_tools.model import Finding, Severity, rank_list
from ddx_tools.parsers.logs.fingerprint import operation_name

_MISMATCH = "c10d_fingerprint_mismatch"
_MISSING = "c10d_monitored_barrier_missing"

_POINT_TO_POINT = ("send", "recv", "isend", "irecv", "batch_isend_irecv")


def collective_findings(
    events: list[Event], signature_findings: dict[str, list[str]], known_ranks: set[int]
) -> list[Finding]:
    """Findings about collectives.

    `signature_findings`: codes that each signature raises; `known_ranks`: all ranks that the logs speak of.
    """
    enclosing = Enclosing(events)
    reports = [event for event in events if event.kind in ("gloo", "watchdog", "signature")]
    watchdog = read_reports(events)
    watchdog += desync_reports(events, watchdog)
    crowd = read_crowd(events)
    places, contexts = Places(events), RankContexts(events)

    def raising(code: str) -> list[Event]:
        return [event for event in reports if code in signature_findings.get(event.row["code"], ())]

    lost = raising("collective.connection_lost")
    printed = printed_findings(reports)
    explained = {finding.attributes["seq"] for finding in printed}
    return [
        *(
            finding
            for finding in watchdog_findings(group_tables(watchdog), crowd, places, contexts)
            if not (finding.attributes.get("state") == "silent" and finding.attributes.get("seq") in explained)
        ),
        *transfer_findings(watchdog, crowd, places, contexts),
        *_timeouts(raising("collective.timeout_reported"), watchdog, enclosing, known_ranks, places),
        *_silent_ranks(raising("collective.timeout_reported"), lost, enclosing, crowd),
        *_all_raised(raising("collective.timeout_reported"), enclosing, crowd),
        *_lost(lost, enclosing),
        *_missing([event for event in reports if event.row["code"] == _MISSING], enclosing, known_ranks),
        *printed,
        *mismatch_findings([event for event in reports if event.row["code"] == _MISMATCH], enclosing),
    ]


def _timeouts(
    events: list[Event], watchdog: list[Report], enclosing: Enclosing, known_ranks: set[int], places: Places
) -> list[Finding]:
    by_event = {id(report.event): report for report in watchdog if report.timed_out}
    groups: dict[tuple[Any, ...], list[Event]] = defaultdict(list)
    for event in events:
        facts, report = event.details, by_event.get(id(event))
        operation = facts.get("operation")
        operation = operation_name(operation) if operation else operation_of(event, enclosing)
        seq = int(facts["seq"]) if facts.get("seq") else None
        timeout = int(facts["timeout_ms"]) if facts.get("timeout_ms") else None
        groups[seq, operation, timeout, report.label if report else None].append(event)
    silent = known_ranks - {rank for event in events for rank in event.ranks}
    return [_timeout(key, told, watchdog, enclosing, silent, places) for key, told in _without_repeats(groups)]


def _timeout(
    key: tuple[Any, ...],
    told: list[Event],
    watchdog: list[Report],
    enclosing: Enclosing,
    silent: set[int],
    places: Places,
) -> Finding:
    seq, operation, timeout, group = key
    what = f"{operation or 'a collective'}{f' (sequence number {seq})' if seq is not None else ''}"
    limit = f" after {timeout} ms" if timeout is not None else ""
    mine = {id(event) for event in told}
    own = [report for report in watchdog if id(report.event) in mine]
    reporters = {report.rank for report in own if report.rank is not None} or {r for e in told for r in e.ranks}
    counters = [r for r in watchdog if r.last_enqueued is not None and r.label == group and r.rank in reporters]
    attributes = {
        "operation": operation,
        "seq": seq,
        "timeout_ms": timeout,
        "elapsed_ms": max((r.elapsed_ms for r in own if r.elapsed_ms is not None), default=None),
        "numel_in": next((r.numel_in for r in own if r.numel_in is not None), None),
        "numel_out": next((r.numel_out for r in own if r.numel_out is not None), None),
        "last_enqueued": by_ranks({r.rank: r.last_enqueued for r in counters}) or None,
        "last_completed": by_ranks({r.rank: r.last_completed for r in counters if r.last_completed is not None})
        or None,
        "queued": max((queued for r in counters if (queued := r.queued) is not None), default=None),
        "not_reporting": (sorted(silent) or None) if reporters else None,
        "direction": next((e.details["direction"] for e in told if e.details.get("direction")), None),
    }
    finding = reported_finding("collective.timeout_reported", Severity.WARNING, told, enclosing, attributes, group)
    finding.ranks = sorted(reporters)
    finding.locations = finding.locations or places.of(reporters, told[0].attempt)
    finding.summary = f"{who_reports(finding.ranks)} reported that {what} timed out{limit}."
    return finding


def _without_repeats(groups: dict[tuple[Any, ...], list[Event]]) -> list[tuple[tuple[Any, ...], list[Event]]]:
    """A report is repeated without its group or its limit: what names none belongs to the only one that is named."""
    merged = dict(groups)
    for place in (2, 3):
        for key in [key for key in merged if key[place] is None]:
            others = [other for other in merged if other != key and _but(other, place) == _but(key, place)]
            if len(others) == 1:
                merged[others[0]] = merged.pop(key) + merged[others[0]]
    return list(merged.items())


def _but(key: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return key[:place] + key[place + 1 :]


def _silent_ranks(timeouts: list[Event], lost: list[Event], enclosing: Enclosing, crowd: Crowd) -> list[Finding]:
    """Gloo raises in every rank that waits: a rank without a word waits for nobody."""
    told = [event for event in timeouts if event.kind == "gloo"]
    waiting = {rank for event in (*told, *lost) for rank in event.ranks}
    found = crowd.silent_among(frozenset(waiting)) if told else None
    if not found:
        return []
    silent, tie = found
    operation = next((name for event in told if (name := operation_of(event, enclosing))), None)
    facts = {
        "state": "silent",
        "operation": operation,
        "waiting": len(waiting),
        "sole": True,
        "tie": tie,
        "p2p": False,
        "simultaneous": "unknown",
        "world_size": crowd.world_size,
    }
    finding = reported_finding("rank.waited_for", Severity.WARNING, told, enclosing, facts, None)
    # The places are those of the ranks that waited.
    finding.ranks, finding.locations = silent, []
    finding.summary = (
        f"All waiting leads back to {rank_list(silent)}, of which the log holds no report: the waiting of "
        f"{rank_list(waiting)} in {operation or 'a collective'}."
    )
    return [finding]


def _all_raised(timeouts: list[Event], enclosing: Enclosing, crowd: Crowd) -> list[Finding]:
    """Gloo raises in the call that waits: if all ranks time out in one call at one place, nobody is missing there.

    A rank that only lost a connection may have come when the others had given up: it does not count as one that waited.
    """
    told = [event for event in timeouts if event.kind == "gloo"]
    limits = [int(event.details["timeout_ms"]) / 1000 for event in told if event.details.get("timeout_ms")]
    waiting = {rank for event in told for rank in event.ranks}
    operations = {operation_of(event, enclosing) for event in told if event.ranks}
    if len(waiting) < 2 or crowd.everybody - waiting or len(operations) != 1:
        return []
    operation = operations.pop()
    if operation is None or operation in _POINT_TO_POINT:
        return []
    facts = {
        "complete": crowd.complete,
        "world_size": crowd.world_size,
        "operation": operation,
        "timeout_s": min(limits, default=None),
    }
    finding = reported_finding("collective.all_entered", Severity.WARNING, told, enclosing, facts, None)
    finding.summary = f"All ranks that the log speaks of were in {operation} at one place, and nobody finished it."
    return [finding] if len(finding.locations) == 1 else []


def _lost(events: list[Event], enclosing: Enclosing) -> list[Finding]:
    if not events:
        return []
    operations = sorted({operation for event in events if (operation := operation_of(event, enclosing))})
    signatures = sorted({str(event.row["code"]) for event in events})
    finding = reported_finding(
        "collective.connection_lost",
        Severity.NOTICE,
        events,
        enclosing,
        {"operations": operations or None, "signatures": signatures},
        None,
    )
    doing = f" in {', '.join(operations)}" if operations else ""
    why = "usually the peer ended or gave up first"
    finding.summary = f"{who_reports(finding.ranks)} lost the connection to a peer{doing}; {why}."
    return [finding]


def _missing(events: list[Event], enclosing: Enclosing, known_ranks: set[int]) -> list[Finding]:
    # Rank 0 says it in its log and in its exception.
    reports: dict[tuple[int, ...], list[Event]] = defaultdict(list)
    for event in events:
        reports[tuple(int(number) for number in re.findall(r"\d+", event.details["missing"]))].append(event)
    findings = []
    for missing, told in reports.items():
        operation = next((found for event in told if (found := operation_of(event, enclosing))), None)
        reporters = sorted({rank for event in told for rank in event.ranks})
        facts = {
            "operation": operation,
            "reported_by": reporters,
            "timeout_ms": int(told[0].details["timeout_ms"]),
            "missing": list(missing),
            "minority": len(missing) < len(known_ranks - set(missing)),
            "tie": len(missing) == len(known_ranks - set(missing)),
            "simultaneous": "yes",
        }
        finding = reported_finding("collective.missing_ranks", Severity.FAILURE, told, enclosing, facts, None)
        # The places are those of the rank that waited, not of the missing ones.
        finding.ranks, finding.locations = list(missing), []
        where = operation or "a monitored barrier"
        finding.summary = f"{who_reports(list(missing))} did not arrive at {where}, as rank 0 reports."
        findings.append(finding)
    return findings
