"""All findings about NCCL's logs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from ddx_tools.analysis.log_events.log_event import LogEvent
from ddx_tools.analysis.log_events.message_findings import message_findings
from ddx_tools.analysis.nccl.finished_findings import finished_findings
from ddx_tools.analysis.nccl.process_rows import NcclLogs, Process, Row, evidence, read_case
from ddx_tools.analysis.nccl.ras_findings import ras_findings
from ddx_tools.evidence.schema import columns
from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.known_messages import match_signatures, signature
from ddx_tools.model.diagnosis import Evidence, Finding, Severity, rank_list
from ddx_tools.model.grouping import gathered
from ddx_tools.probes.nccl_log.operation_findings import operation_findings, p2p_findings, read_enqueued
from ddx_tools.probes.nccl_log.rings import ring_findings
from ddx_tools.probes.nccl_log.startup_findings import startup_findings
from ddx_tools.probes.nccl_log.transport_findings import transport_findings


def nccl_findings(store: Store) -> list[Finding]:
    """Return the findings about the tables whose names begin with `nccl_`."""
    case = read_case(store)
    enqueued = read_enqueued(case, store)
    with_operations = {
        (one.communicator.id, row["host"], row["pid"]) for one in enqueued for row in one.streams.values()
    }
    return [
        *warning_findings(case, store),
        *startup_findings(case, with_operations),
        *raised_versions(case, store),
        *operation_findings(case, enqueued),
        *p2p_findings(case, enqueued),
        *setting_findings(case, store),
        *transport_findings(case, store),
        *ring_findings(case, store),
        *ras_findings(store),
        *finished_findings(store),
    ]


# --- NCCL versions in the ranks' exceptions: torch ends its message with `NCCL version 2.18.1`

_VERSION = re.compile(r"\bNCCL version (\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)")
_MOST_ROWS = 2_000
_MOST_EVIDENCE = 4
_QUERY = f"""
SELECT rank, host, text, attempt, source, source_line FROM log_events
WHERE kind IN ('traceback', 'signature') AND rank IS NOT NULL AND text LIKE '%NCCL version %'
ORDER BY source, source_line LIMIT {_MOST_ROWS}
"""


def raised_versions(case: NcclLogs, store: Store) -> Iterator[Finding]:
    """Yield a finding if ranks raised errors that name different NCCL versions.

    A rank that names two versions was started twice, with a change in between: then there is no finding. Banners are
    better evidence, so if they differ, this is left to them.
    """
    if len({row["version"] for row in [*case.processes.values(), *case.banners] if row["version"]}) > 1:
        return
    by_version: dict[str, dict[int, Evidence]] = defaultdict(dict)
    for row in store.query(_QUERY):
        if found := _VERSION.search(row["text"]):
            place = Evidence(source=row["source"], line=row["source_line"], quote=row["text"][:400])
            by_version[found[1]].setdefault(row["rank"], place)
    ranks = [rank for members in by_version.values() for rank in members]
    if len(by_version) < 2 or len(ranks) != len(set(ranks)):
        return
    ordered = sorted(by_version.items(), key=lambda item: -len(item[1]))
    said = "; ".join(f"{version} on {rank_list(sorted(members))}" for version, members in ordered)
    yield Finding(
        code="startup.versions_differ",
        severity=Severity.FAILURE,
        ranks=sorted(rank for _, members in ordered[1:] for rank in members),
        summary=f"The ranks' errors name different NCCL versions: {said}."[:600],
        evidence=[next(iter(members.values())) for _, members in ordered[:_MOST_EVIDENCE]],
        attributes={
            "what": "nccl",
            "versions": {version: sorted(members) for version, members in ordered},
            "basis": "log",
        },
    )


# --- findings about variables that NCCL read from the environment and that differ between ranks or hosts

_MOST_SETTINGS = 6
_MOST_VALUES = 32
# Variables that are meant to differ between ranks or hosts.
_OWN = frozenset({"NCCL_HOSTID", "NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE", "NCCL_COMM_ID"})


def setting_findings(case: NcclLogs, store: Store) -> list[Finding]:
    """Return a finding for each NCCL variable that differs between processes.

    Either its values differ, or it is set for all processes of some hosts and for none of the others.
    """
    by_variable: dict[str, dict[Process, Row]] = defaultdict(dict)
    for row in store.query("SELECT * FROM nccl_settings ORDER BY variable, host, pid"):
        by_variable[row["variable"]][row["host"], row["pid"]] = row
    members = {(row["host"], row["pid"]) for one in case.communicators.values() for row in one.members.values()}
    return [
        finding
        for variable, rows in by_variable.items()
        if variable not in _OWN
        for finding in [*_values_differ(case, variable, rows), *_set_on_some_hosts(case, variable, rows, members)][:1]
    ]


def _values_differ(case: NcclLogs, variable: str, rows: dict[Process, Row]) -> Iterator[Finding]:
    by_value = gathered((row["value"], row) for row in rows.values())
    if len(by_value) < 2:
        return
    ordered = sorted(by_value.items(), key=lambda item: -len(item[1]))
    majority = 2 * len(ordered[0][1]) > len(rows)
    odd = [row for _, some in (ordered[1:] if majority else ordered) for row in some]
    said = "; ".join(f"{value or '(empty)'} on {_hosts(some)}" for value, some in ordered[:6])
    yield case.finding(
        "config.differs",
        Severity.WARNING,
        odd,
        f"{variable} is not the same everywhere: {said}.",
        [evidence(some[0]) for value, some in ordered[:_MOST_SETTINGS]],
        variable=variable,
        values={value: _places(case, some) for value, some in ordered[:_MOST_VALUES]},
        minority=majority,
        tie=not majority,
    )


def _set_on_some_hosts(
    case: NcclLogs, variable: str, rows: dict[Process, Row], members: set[Process]
) -> Iterator[Finding]:
    """A variable set for all processes on some hosts and for none on the others.

    NCCL reads many variables only when it needs them, so a line from a single process proves nothing.
    """
    by_host = gathered((process[0], process) for process in members)
    having = {host for host, own in by_host.items() if all(process in rows for process in own)}
    lacking = {host for host, own in by_host.items() if not any(process in rows for process in own)}
    if not having or not lacking or having | lacking != by_host.keys():
        return
    odd = lacking if len(lacking) < len(having) else having if len(having) < len(lacking) else lacking | having
    value = next(row["value"] for row in rows.values() if row["host"] in having)
    yield case.finding(
        "config.differs",
        Severity.NOTICE,
        (case.processes[process] for host in odd for process in by_host[host]),
        f"{variable} ({value}) is set on {', '.join(sorted(having)[:8])}, but not mentioned in the log of "
        f"{', '.join(sorted(lacking)[:8])}.",
        [evidence(row) for row in list(rows.values())[:_MOST_SETTINGS]],
        variable=variable,
        values={value: sorted(having)[:_MOST_VALUES], "(not mentioned)": sorted(lacking)[:_MOST_VALUES]},
        minority=len(lacking) != len(having),
        tie=len(lacking) == len(having),
    )


def _hosts(rows: list[Row]) -> str:
    return ", ".join(sorted({row["host"] for row in rows})[:6])


def _places(case: NcclLogs, rows: list[Row]) -> list[str]:
    """The ranks if they are known, else the hosts."""
    ranks = case.ranks_of(rows)
    return [str(rank) for rank in ranks] if len(ranks) == len(rows) else sorted({row["host"] for row in rows})


# --- findings about warnings: known messages as in other logs, with ranks from the communicators; and all others

_MOST_WARNINGS = 8
_MOST_UNKNOWN = 20
_DIGITS = re.compile(r"0x[0-9a-f]+|\d+")
_BASIS = "nccl_log"


def warning_findings(case: NcclLogs, store: Store) -> list[Finding]:
    """Return findings about warnings: known ones with their meaning, the others verbatim."""
    events: list[LogEvent] = []
    unknown: dict[str, list[Row]] = defaultdict(list)
    for row in store.query("SELECT * FROM nccl_warnings ORDER BY source, source_line"):
        matches = match_signatures(f"NCCL WARN {row['text']}")
        events += [_event(case, row, match.signature.id, match.groups) for match in matches]
        if not matches:
            unknown[_DIGITS.sub("#", row["text"])].append(row)
    findings = [*message_findings(events), *_lost(case, events)]
    for finding in findings:
        finding.attributes["basis"] = _BASIS
    return findings + [_unknown(case, rows) for rows in list(unknown.values())[:_MOST_UNKNOWN]]


def _lost(case: NcclLogs, events: list[LogEvent]) -> list[Finding]:
    """Findings about connections that peers closed: a consequence of an exit or an abort."""
    told = [event for event in events if "collective.connection_lost" in signature(event.row["code"]).findings]
    if not told:
        return []
    ranks = sorted({rank for event in told for rank in event.ranks})
    hosts = sorted({event.row["host"] for event in told})
    who = rank_list(ranks).capitalize() if ranks else f"NCCL on {', '.join(hosts[:6])}"
    return [
        Finding(
            code="collective.connection_lost",
            severity=Severity.NOTICE,
            ranks=ranks,
            hosts=hosts,
            summary=f"{who} lost the connection to a peer; usually because the peer ended or aborted first.",
            evidence=[event.evidence for event in told[:_MOST_WARNINGS]],
            attributes={
                "signatures": sorted({str(event.row["code"]) for event in told}),
                "peers": sorted({event.details["peer"] for event in told if event.details.get("peer")})[:16],
                "basis": _BASIS,
            },
        )
    ]


def _event(case: NcclLogs, row: Row, signature_id: str, groups: dict[str, str]) -> LogEvent:
    rank = case.rank_of(row)
    details: dict[str, Any] = {**groups, "quote": row["quote"]}
    as_log_event = {
        **dict.fromkeys(columns("log_events")),
        "host": row["host"],
        "rank": rank,
        "pid": row["pid"],
        "kind": "signature",
        "code": signature_id,
        "text": row["text"],
        "source": row["source"],
        "source_line": row["source_line"],
    }
    return LogEvent(as_log_event, details, [] if rank is None else [rank])


def _unknown(case: NcclLogs, rows: list[Row]) -> Finding:
    first = rows[0]
    ranks = case.ranks_of(rows)
    hosts = sorted({row["host"] for row in rows})
    who = rank_list(ranks).capitalize() if ranks else f"NCCL on {', '.join(hosts[:6])}"
    facts = {
        "signature": None,
        "role": "context",
        "meaning": None,
        "text": first["text"][:400],
        "count": sum(row["times"] for row in rows),
        "place": f"{first['code_file']}:{first['code_line']}" if first["code_file"] else None,
        "basis": _BASIS,
    }
    return Finding(
        code="log.signature",
        severity=Severity.NOTICE,
        ranks=ranks,
        hosts=hosts,
        summary=f"{who} warned: {first['text'][:300]}",
        evidence=[evidence(row) for row in rows[:_MOST_WARNINGS]],
        attributes={name: value for name, value in facts.items() if value is not None},
    )
