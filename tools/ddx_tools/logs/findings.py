"""All that the logs of a job say, as findings."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ddx_tools.formats.signatures import signature, signatures
from ddx_tools.logs.collectives import collective_findings
from ddx_tools.logs.event import Event, read_events, short_name
from ddx_tools.logs.failures import failure_findings
from ddx_tools.logs.identity import exit_codes, identify
from ddx_tools.model import Finding, Severity, rank_list

if TYPE_CHECKING:
    from ddx_tools.store import Store

_EVIDENCE_LIMIT = 8
_SEVERITY = {"root": Severity.WARNING, "secondary": Severity.NOTICE, "context": Severity.INFO}


def log_findings(store: Store) -> list[Finding]:
    """Findings of `log_events`; independent failures first."""
    events = read_events(store)
    identify(events, store.query("SELECT host, role, rank, local_rank, pid FROM ranks ORDER BY host, pid"))
    codes = exit_codes(events)
    raises = {known.id: known.findings for known in signatures()}
    findings = [
        *failure_findings(events, codes),
        *collective_findings(events, raises, {rank for event in events for rank in event.ranks}),
        *_known_messages(events),
        *_job_ended(events, codes),
    ]
    return sorted(findings, key=lambda finding: finding.attributes.get("independent") is not True)


def _known_messages(events: list[Event]) -> list[Finding]:
    """Messages that raise no finding of their own."""
    by_signature: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.kind in ("gloo", "watchdog", "signature"):
            by_signature[event.row["code"]].append(event)
    findings = []
    for signature_id, matches in by_signature.items():
        known = signature(signature_id)
        if "log.signature" not in known.findings:
            continue
        ranks = sorted({rank for event in matches for rank in event.ranks})
        findings.append(
            Finding(
                code="log.signature",
                severity=_SEVERITY[known.role],
                ranks=ranks,
                hosts=sorted({event.row["host"] for event in matches if event.row["host"]}),
                summary=f"{rank_list(ranks).capitalize() if ranks else 'The log'}: {known.meaning}",
                evidence=[event.evidence for event in matches[:_EVIDENCE_LIMIT]],
                attributes=_facts(matches[0], known.id, known.role, known.meaning, len(matches)),
            )
        )
    return findings


def _facts(event: Event, signature_id: str, role: str, meaning: str, count: int) -> dict[str, Any]:
    own = ("quote", "stream", "local_rank")
    groups = {name: value for name, value in event.details.items() if name not in own}
    return {
        **groups,
        "signature": signature_id,
        "role": role,
        "meaning": meaning,
        "count": count,
        "basis": "log",
    }


def _job_ended(events: list[Event], codes: dict[int, int]) -> list[Finding]:
    ends = [
        event
        for event in events
        if event.kind == "failure_summary"
        or short_name(event.exception) in ("ProcessRaisedException", "ProcessExitedException")
        or event.details.get("event") == "launcher_stopped"
    ]
    if not ends:
        return []
    signal = next((e.row["code"] for e in ends if e.details.get("event") == "launcher_stopped"), None)
    said = ", ".join(f"{rank}: {code}" for rank, code in sorted(codes.items())[:16])
    how = f"The launcher was stopped by {signal}" if signal else "The launcher reports that the job failed"
    facts = {
        "exit_codes": {str(rank): code for rank, code in sorted(codes.items())},
        "signal": signal,
        "basis": "log",
    }
    return [
        Finding(
            code="job.ended",
            severity=Severity.NOTICE,
            ranks=sorted(codes),
            summary=f"{how}; exit codes by rank: {said or 'unknown'}.",
            evidence=[event.evidence for event in ends[:_EVIDENCE_LIMIT]],
            attributes={name: value for name, value in facts.items() if value is not None},
        )
    ]
