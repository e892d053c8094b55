"""Findings about warnings: known messages as everywhere else, with the ranks that communicators tell; and the rest."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from ddx_tools.logs.event import Event
from ddx_tools.logs.message_findings import message_findings
from ddx_tools.model import Finding, Severity, rank_list
from ddx_tools.nccl.view import Case, Row, evidence
from ddx_tools.parsers.logs.signatures import match_signatures, signature
from ddx_tools.schema import columns
from ddx_tools.store import Store

_MOST_EVIDENCE = 8
_MOST_UNKNOWN = 20
_DIGITS = re.compile(r"0x[0-9a-f]+|\d+")
_BASIS = "nccl_log"


def warning_findings(case: Case, store: Store) -> list[Finding]:
    """Known warnings by what they mean, the others as they stand."""
    events: list[Event] = []
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


def _lost(case: Case, events: list[Event]) -> list[Finding]:
    """Connections that peers closed, which is a consequence: of an end, of an abort."""
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
            summary=f"{who} lost the connection to a peer; usually the peer ended or gave up first.",
            evidence=[event.evidence for event in told[:_MOST_EVIDENCE]],
            attributes={
                "signatures": sorted({str(event.row["code"]) for event in told}),
                "peers": sorted({event.details["peer"] for event in told if event.details.get("peer")})[:16],
                "basis": _BASIS,
            },
        )
    ]


def _event(case: Case, row: Row, signature_id: str, groups: dict[str, str]) -> Event:
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
    return Event(as_log_event, details, [] if rank is None else [rank])


def _unknown(case: Case, rows: list[Row]) -> Finding:
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
        evidence=[evidence(row) for row in rows[:_MOST_EVIDENCE]],
        attributes={name: value for name, value in facts.items() if value is not None},
    )
