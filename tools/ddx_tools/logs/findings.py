"""All that the logs of a job say, as findings."""

from __future__ import annotations

from collections.abc import Iterator

from ddx_tools.analysis.ranks.living import all_live, living_ranks
from ddx_tools.logs.collectives import collective_findings
from ddx_tools.logs.crowd import read_crowd
from ddx_tools.logs.earlier import earlier_attempt, parted
from ddx_tools.logs.epoch_ends import ran_out_of_data
from ddx_tools.logs.event import OWN_ENDS, REPORTED_ENDS, Event, read_events, short_name
from ddx_tools.logs.failures import failure_findings
from ddx_tools.logs.identity import exit_codes, identify
from ddx_tools.logs.left_loop import left_the_loop
from ddx_tools.logs.message_findings import message_findings
from ddx_tools.logs.steps import step_findings
from ddx_tools.model import Finding, Severity
from ddx_tools.parsers.logs.signatures import signatures
from ddx_tools.store import Store

_EVIDENCE_LIMIT = 8
_OF_RANKS = ("stack_threads", "fr_dumps")
"""Tables of what was seen inside of ranks."""
_ENDS = {
    "job.ended",
    "rank.raised",
    "rank.killed",
    "rank.exited",
    "rank.aborted_on_size",
    "collective.timeout_reported",
    "collective.connection_lost",
}


def log_findings(store: Store) -> list[Finding]:
    """Findings of `log_events`; independent failures first."""
    events = read_events(store)
    earlier, events = parted(events)
    identify(events, store.query("SELECT host, role, rank, local_rank, pid FROM ranks ORDER BY host, pid"))
    _mark_caught(store, events)
    codes = exit_codes(events)
    raises = {known.id: known.findings for known in signatures()}
    findings = [
        *failure_findings(events, codes),
        *collective_findings(events, raises, {rank for event in events for rank in event.ranks}),
        *message_findings(events),
        *ran_out_of_data(events, read_crowd(events)),
        *left_the_loop(events),
        *step_findings(events, {row["source"] for row in store.query("SELECT source FROM logs WHERE cut")}),
        *_job_ended(events, codes),
        *earlier_attempt(earlier, events),
    ]
    findings += _ranks_unseen(store, events, findings)
    return sorted(findings, key=lambda finding: finding.attributes.get("independent") is not True)


def _mark_caught(store: Store, events: list[Event]) -> None:
    """Mark the tracebacks of ranks that were seen to live on: they caught and logged these."""
    living = living_ranks(store)
    if not living or any(event.kind in (*REPORTED_ENDS, *OWN_ENDS) for event in events):
        return
    everybody = all_live(store, living)
    for event in events:
        event.caught = event.kind == "traceback" and (living.issuperset(event.ranks) if event.ranks else everybody)


def _ranks_unseen(store: Store, events: list[Event], findings: list[Finding]) -> Iterator[Finding]:
    """One finding, if logs were read and nobody looked at any rank: then a look is what tells most."""
    if not store.query("SELECT path FROM logs LIMIT 1") or any(
        store.query(f"SELECT host FROM {table} LIMIT 1") for table in _OF_RANKS
    ):
        return
    steps = any(event.kind == "step" for event in events)
    ended = any(finding.code in _ENDS or finding.severity is Severity.FAILURE for finding in findings)
    how = f"{'steps' if steps else 'no step'} and {'of an end' if ended else 'no end'}"
    yield Finding(
        code="job.ranks_unseen",
        severity=Severity.INFO,
        summary=f"Nobody looked at a rank: no stack, no flight record. What the job printed tells of {how}.",
        attributes={"steps": steps, "ended": ended, "basis": "log"},
    )


def _job_ended(events: list[Event], codes: dict[int, int]) -> Iterator[Finding]:
    ends = [
        event
        for event in events
        if event.kind == "failure_summary"
        or short_name(event.exception) in ("ProcessRaisedException", "ProcessExitedException")
        or event.details.get("event") == "launcher_stopped"
    ]
    if not ends:
        return
    signal = next((e.row["code"] for e in ends if e.details.get("event") == "launcher_stopped"), None)
    said = ", ".join(f"{rank}: {code}" for rank, code in sorted(codes.items())[:16])
    how = f"The launcher was stopped by {signal}" if signal else "The launcher reports that the job failed"
    facts = {
        "exit_codes": {str(rank): code for rank, code in sorted(codes.items())},
        "signal": signal,
        "basis": "log",
    }
    yield Finding(
        code="job.ended",
        severity=Severity.NOTICE,
        ranks=sorted(codes),
        summary=f"{how}; exit codes by rank: {said or 'unknown'}.",
        evidence=[event.evidence for event in ends[:_EVIDENCE_LIMIT]],
        attributes={name: value for name, value in facts.items() if value is not None},
    )
