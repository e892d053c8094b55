"""All that the logs of a job say, as findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddx_tools.formats.signatures import signatures
from ddx_tools.logs.collectives import collective_findings
from ddx_tools.logs.earlier import earlier_attempt, parted
from ddx_tools.logs.event import Event, read_events, short_name
from ddx_tools.logs.failures import failure_findings
from ddx_tools.logs.identity import exit_codes, identify
from ddx_tools.logs.message_findings import message_findings
from ddx_tools.logs.steps import step_findings
from ddx_tools.model import Finding, Severity

if TYPE_CHECKING:
    from ddx_tools.store import Store

_EVIDENCE_LIMIT = 8


def log_findings(store: Store) -> list[Finding]:
    """Findings of `log_events`; independent failures first."""
    events = read_events(store)
    earlier, events = parted(events)
    identify(events, store.query("SELECT host, role, rank, local_rank, pid FROM ranks ORDER BY host, pid"))
    codes = exit_codes(events)
    raises = {known.id: known.findings for known in signatures()}
    findings = [
        *failure_findings(events, codes),
        *collective_findings(events, raises, {rank for event in events for rank in event.ranks}),
        *message_findings(events),
        *step_findings(events),
        *_job_ended(events, codes),
        *earlier_attempt(earlier, events),
    ]
    return sorted(findings, key=lambda finding: finding.attributes.get("independent") is not True)


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
