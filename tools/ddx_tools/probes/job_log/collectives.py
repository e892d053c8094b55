"""Findings about the collectives that ranks report: timeouts, lost connections, mismatches, absent peers.

A report is one rank's view: it says what that rank waited for, but seldom which rank made it wait.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ddx_tools.analysis.collectives import findings as raising
from ddx_tools.analysis.collectives.findings import Aspect, FindingPlace, Where
from ddx_tools.analysis.collectives.participation import (
    GroupMember,
    GroupParticipation,
    JobRanks,
    PendingCall,
    party_findings,
)
from ddx_tools.analysis.log_events.attribution import (
    Enclosing,
    by_ranks,
    distinct_places,
    operation_of,
    part_of,
    reported_finding,
    who_reports,
)
from ddx_tools.analysis.log_events.fingerprint import Fingerprint, MismatchReport, operation_name, parse_mismatch
from ddx_tools.analysis.log_events.known_ranks import read_crowd
from ddx_tools.analysis.log_events.log_event import LogEvent
from ddx_tools.model.diagnosis import Finding, Location, Severity
from ddx_tools.model.files.rank_names import rank_of_name
from ddx_tools.model.grouping import gathered
from ddx_tools.probes.job_log.desync import desync_reports, transfer_findings, watchdog_parties
from ddx_tools.probes.job_log.watchdog_reports import WatchdogReport, read_reports
from ddx_tools.probes.job_log.watchdog_stacks import Whereabouts

_MISMATCH = "c10d_fingerprint_mismatch"
_MISSING = "c10d_monitored_barrier_missing"

_EVIDENCE_LIMIT = 8


def collective_findings(
    events: list[LogEvent], signature_findings: dict[str, list[str]], known_ranks: set[int], seen_size: int | None
) -> list[Finding]:
    """Return the findings about collectives in the reports of ranks.

    `signature_findings`: the finding codes of each signature; `known_ranks`: all ranks that the logs mention;
    `seen_size`: the number of ranks, from a source other than logs.
    """
    enclosing = Enclosing(events)
    reports = [event for event in events if event.kind in ("gloo", "watchdog", "signature")]
    watchdog = read_reports(events)
    watchdog += desync_reports(events, watchdog)
    crowd = read_crowd(events, seen_size)
    whereabouts = Whereabouts(events)

    def raising_code(code: str) -> list[LogEvent]:
        return [event for event in reports if code in signature_findings.get(event.row["code"], ())]

    lost = raising_code("collective.connection_lost")
    printed = party_findings(printed_parties(reports))
    explained = {finding.attributes["seq"] for finding in printed}
    timeouts = raising_code("collective.timeout_reported")
    job = JobRanks(crowd.everybody, crowd.complete, crowd.world_size, crowd.silent_among)
    return [
        *party_findings(watchdog_parties(watchdog, job, whereabouts), explained),
        *transfer_findings(watchdog, crowd, whereabouts),
        *_timeouts(timeouts, watchdog, enclosing, known_ranks, whereabouts),
        *party_findings(_gloo_parties(timeouts, lost, enclosing, job)),
        *_lost(lost, enclosing),
        *_missing([event for event in reports if event.row["code"] == _MISSING], enclosing, known_ranks),
        *printed,
        *party_findings(fingerprint_parties([e for e in reports if e.row["code"] == _MISMATCH], enclosing)),
    ]


def _timeouts(
    events: list[LogEvent],
    watchdog: list[WatchdogReport],
    enclosing: Enclosing,
    known_ranks: set[int],
    whereabouts: Whereabouts,
) -> list[Finding]:
    by_event = {id(report.event): report for report in watchdog if report.timed_out}
    groups: dict[tuple[Any, ...], list[LogEvent]] = defaultdict(list)
    for event in events:
        facts, report = event.details, by_event.get(id(event))
        operation = facts.get("operation")
        operation = operation_name(operation) if operation else operation_of(event, enclosing)
        seq = int(facts["seq"]) if facts.get("seq") else None
        timeout = int(facts["timeout_ms"]) if facts.get("timeout_ms") else None
        groups[seq, operation, timeout, report.label if report else None].append(event)
    silent = known_ranks - {rank for event in events for rank in event.ranks}
    return [_timeout(key, told, watchdog, enclosing, silent, whereabouts) for key, told in _without_repeats(groups)]


def _timeout(
    key: tuple[Any, ...],
    told: list[LogEvent],
    watchdog: list[WatchdogReport],
    enclosing: Enclosing,
    silent: set[int],
    whereabouts: Whereabouts,
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
    finding.locations = finding.locations or whereabouts.places(reporters, told[0].attempt)
    finding.summary = f"{who_reports(finding.ranks)} reported that {what} timed out{limit}."
    return finding


def _without_repeats(groups: dict[tuple[Any, ...], list[LogEvent]]) -> list[tuple[tuple[Any, ...], list[LogEvent]]]:
    """Groups without repeats: reports are repeated without group or limit, and such a repeat belongs to the only one
    that is named."""
    merged = dict(groups)
    for place in (2, 3):
        for key in [key for key in merged if key[place] is None]:
            others = [other for other in merged if other != key and _but(other, place) == _but(key, place)]
            if len(others) == 1:
                merged[others[0]] = merged.pop(key) + merged[others[0]]
    return list(merged.items())


def _but(key: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return key[:place] + key[place + 1 :]


def _gloo_parties(
    timeouts: list[LogEvent], lost: list[LogEvent], enclosing: Enclosing, job: JobRanks
) -> list[GroupParticipation]:
    """Gloo raises in every waiting rank, in the waiting call: a rank that reports nothing waits for no rank.

    A rank that only lost a connection may have entered after the others timed out: its place is unknown.
    """
    told = [event for event in timeouts if event.kind == "gloo"]
    where = {id(event): part_of(event, enclosing) for event in told if event.ranks}
    operations = {operation for _, operation in where.values()}
    places = distinct_places([place for place, _ in where.values() if place])
    # All can be in one operation only if they are at one place.
    operation = next(iter(operations)) if len(operations) == len(places) == 1 else None
    members: dict[int, GroupMember] = {}
    for event in told:
        limit = event.details.get("timeout_ms")
        called: dict[raising.Aspect, str] = {"operation": operation} if operation else {}
        call = PendingCall(called, event.evidence, timeout_s=int(limit) / 1000 if limit else None)
        for rank in event.ranks:
            members.setdefault(rank, GroupMember(rank, call))
    attempts = sorted({event.attempt for event in told} - {0})
    spoke = frozenset(rank for event in lost for rank in event.ranks)
    party = GroupParticipation("log", members, job, attempts=attempts, spoke=spoke)
    party.places = lambda ranks: places if members.keys() & set(ranks) else []
    return [party]


def _lost(events: list[LogEvent], enclosing: Enclosing) -> list[Finding]:
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
    why = "usually because the peer ended or aborted first"
    finding.summary = f"{who_reports(finding.ranks)} lost the connection to a peer{doing}; {why}."
    return [finding]


def _missing(events: list[LogEvent], enclosing: Enclosing, known_ranks: set[int]) -> Iterator[Finding]:
    # Rank 0 reports it in its log and in its exception.
    reports = gathered(
        (tuple(int(number) for number in re.findall(r"\d+", event.details["missing"])), event) for event in events
    )
    for missing, told in reports.items():
        operation = next((found for event in told if (found := operation_of(event, enclosing))), None)
        yield raising.missing(
            Where("log", operation=operation, attempts=sorted({event.attempt for event in told} - {0})),
            missing,
            known_ranks - set(missing),
            FindingPlace([event.evidence for event in told[:_EVIDENCE_LIMIT]]),
            severity=Severity.FAILURE,
            simultaneous="yes",
            says=f"{who_reports(list(missing))} did not enter {operation or 'a monitored barrier'}, according to rank "
            "0.",
            timeout_ms=int(told[0].details["timeout_ms"]),
        )


# --- mismatch reports of TORCH_DISTRIBUTED_DEBUG=DETAIL: each rank's report about itself, compared

_ASPECTS: tuple[Aspect, ...] = ("operation", "shape", "dtype")


def fingerprint_parties(events: list[LogEvent], enclosing: Enclosing) -> list[GroupParticipation]:
    """Return which ranks called what, according to torch's reports of mismatched collectives.

    There is one entry for each sequence number.
    """
    by_seq = gathered(
        (report.own.seq, (event, report)) for event in events if (report := parse_mismatch(event.row["text"]))
    )
    return [_party(seq, reports, enclosing) for seq, reports in by_seq.items()]


def _party(seq: int | None, reports: list[tuple[LogEvent, MismatchReport]], enclosing: Enclosing) -> GroupParticipation:
    differing = [aspect for aspect in _ASPECTS if _differs(aspect, [report for _, report in reports])]
    members: dict[int, GroupMember] = {}
    where: dict[int, Location] = {}
    for event, report in reports:
        if place := part_of(event, enclosing)[0]:
            where[report.own.rank] = place
        # A rank's report is right about itself, but not always about its peer.
        for said in (report.own, report.peer):
            if said and (said is report.own or said.rank not in members):
                member = members[said.rank] = GroupMember(said.rank)
                member.call = PendingCall(_values(said, differing), event.evidence, seq)
                member.hosts = {event.row["host"]} - {None}

    def places(ranks: Collection[int]) -> list[Location]:
        return distinct_places([where[rank] for rank in sorted(ranks) if rank in where])

    attempts = sorted({event.attempt for event, _ in reports} - {0})
    return GroupParticipation(
        "log", members, JobRanks(frozenset()), named=True, one_point=True, attempts=attempts, places=places
    )


def _values(said: Fingerprint, differing: list[Aspect]) -> dict[Aspect, str]:
    values: dict[Aspect, str] = {aspect: str(getattr(said, aspect)) for aspect in differing}
    return {"operation": said.operation, **values}


def _differs(aspect: str, reports: list[MismatchReport]) -> bool:
    """Whether a report names the aspect, or ranks that report only about themselves differ in it."""
    own = {getattr(report.own, aspect) for report in reports if report.peer is None}
    return len(own) > 1 or any(aspect in report.aspects for report in reports)


# --- printed entries of flight records: one dict per line, with the rank in the line above or in the file name
#     ===== /tmp/nccl_trace_rank_2  entries[-2:]
#     {'collective_seq_id': 8, 'input_dtypes': ['Float'], 'input_sizes': [[1024]], 'process_group': ('0', 'default_pg'),
#      'profiling_name': 'nccl:all_reduce', 'state': 'started', ...}
# (One line each; keys as FlightRecorder.cpp dumps them, torch 2.3 to 2.15, printed by Python or as JSON.) Such lines
# are often shortened with dots, so they are searched, not evaluated. `flight_recorder` reads whole records.

_ENTRY, _HEAD = "torch_printed_entry", "torch_trace_file"
_NEAR = 100
"""The maximum number of lines between the line that names the rank and an entry below it."""
_FIELDS = {
    "seq": re.compile(r"""['"]collective_seq_id['"]: (\d{1,18})"""),
    "group": re.compile(r"""['"]process_group['"]: [\[(]['"]([^'"]{0,120})['"]"""),
    "operation": re.compile(r"""['"]profiling_name['"]: ['"]\w{1,20}:(?:[^'"]{0,80} )?(\w{1,60})['"]"""),
    "state": re.compile(r"""['"]state['"]: ['"](\w{1,20})['"]"""),
    "dtype": re.compile(r"""['"]input_dtypes['"]: (\[['"\w, ]{0,200}\])"""),
    "shape": re.compile(r"""['"]input_sizes['"]: (\[[\[\]\d, ]{0,300}\])"""),
}
# Operations to which ranks may pass different sizes.
_RAGGED = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "barrier")


@dataclass(frozen=True)
class _Entry:
    event: LogEvent
    rank: int
    told: dict[str, str]


def printed_parties(events: Iterable[LogEvent]) -> list[GroupParticipation]:
    """Return which ranks were in which operation, from flight record entries printed to logs.

    There is one entry for each attempt, group and sequence number, unless all ranks completed it.
    """
    by_number: dict[tuple[int, str, str], dict[int, _Entry]] = defaultdict(dict)
    for entry in _entries(events):
        if {"seq", "group", "operation"} <= entry.told.keys():
            by_number[entry.event.attempt, entry.told["group"], entry.told["seq"]][entry.rank] = entry
    return [
        GroupParticipation(
            "log",
            {rank: GroupMember(rank, _call(entry, int(seq))) for rank, entry in sorted(entries.items())},
            JobRanks(frozenset()),
            label=group,
            named=True,
            attempts=[attempt] if attempt else [],
        )
        for (attempt, group, seq), entries in sorted(by_number.items())
        # Nothing waits for an operation that all completed; a difference there is left to the whole records.
        if any(entry.told.get("state") != "completed" for entry in entries.values())
    ]


def _call(entry: _Entry, seq: int) -> PendingCall:
    ragged = entry.told["operation"].strip("_").startswith(_RAGGED)
    aspects: tuple[Aspect, ...] = ("operation", "dtype") if ragged else ("operation", "shape", "dtype")
    return PendingCall(
        {aspect: entry.told[aspect] for aspect in aspects if aspect in entry.told}, entry.event.evidence, seq
    )


def _entries(events: Iterable[LogEvent]) -> Iterable[_Entry]:
    head: LogEvent | None = None
    for event in events:
        code = event.row["code"]
        if code == _HEAD:
            head = event
        elif code == _ENTRY:
            rank = _rank(event, head)
            text = str(event.row["text"] or "")
            if rank is not None:
                told = {name: match[1] for name, field in _FIELDS.items() if (match := field.search(text))}
                yield _Entry(event, rank, told)


def _rank(event: LogEvent, head: LogEvent | None) -> int | None:
    if head and head.row["source"] == event.row["source"]:
        distance = event.row["source_line"] - head.row["source_line"]
        return int(head.details["of_rank"]) if 0 <= distance <= _NEAR else None
    return event.ranks[0] if len(event.ranks) == 1 else rank_of_name(str(event.row["source"] or ""))
