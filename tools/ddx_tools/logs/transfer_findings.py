"""What watchdog reports say of point-to-point operations. They name no peer, so only one pattern is proof."""

from __future__ import annotations

from collections import defaultdict

from ddx_tools.logs.crowd import Crowd
from ddx_tools.logs.rank_contexts import RankContexts
from ddx_tools.logs.watchdog_places import Places
from ddx_tools.logs.watchdog_reports import Report
from ddx_tools.model import Finding, Severity, rank_list

_EVIDENCE_LIMIT = 8


def transfer_findings(reports: list[Report], crowd: Crowd, places: Places, contexts: RankContexts) -> list[Finding]:
    """Ranks that all wait in a send, of every attempt.

    A send waits for its receiver. If every rank of the job is held in one, each of them waits for a rank that is held
    in a send itself: there is a circle, whoever sends to whom.
    """
    oldest: dict[int, dict[int, Report]] = defaultdict(dict)
    for report in reports:
        if report.timed_out and report.rank is not None:
            before = oldest[report.event.attempt].setdefault(report.rank, report)
            if (report.seq or 0) < (before.seq or 0):
                oldest[report.event.attempt][report.rank] = report
    return [
        _circle(attempt, waiting, crowd, places, contexts)
        for attempt, waiting in sorted(oldest.items())
        if len(waiting) > 1
        and waiting.keys() >= crowd.everybody
        and all(report.op_type == "SEND" for report in waiting.values())
    ]


def _circle(attempt: int, waiting: dict[int, Report], crowd: Crowd, places: Places, contexts: RankContexts) -> Finding:
    ranks = sorted(waiting)
    facts = {
        "operations": {"send": ranks},
        "operation": "send",
        # A log of the first stages of a longer pipeline looks the same.
        "complete": crowd.complete,
        "basis": "log",
        "attempts": [attempt] if attempt else None,
    }
    return Finding(
        code="p2p.circular_wait",
        severity=Severity.FAILURE if crowd.complete else Severity.WARNING,
        ranks=ranks,
        hosts=sorted({report.event.row["host"] for report in waiting.values() if report.event.row["host"]}),
        summary=f"All ranks that the log speaks of ({rank_list(ranks)}) are held in a send: each waits for one that "
        "sends itself and receives nothing.",
        evidence=[waiting[rank].event.evidence for rank in ranks[:_EVIDENCE_LIMIT]],
        locations=places.of(ranks, attempt) or contexts.places(ranks, attempt),
        attributes={name: value for name, value in facts.items() if value is not None},
    )
