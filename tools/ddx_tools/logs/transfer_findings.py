"""What watchdog reports say of point-to-point operations. They name no peer, so only two patterns are proof."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ddx_tools.logs.crowd import Crowd
from ddx_tools.logs.rank_contexts import RankContexts
from ddx_tools.logs.watchdog_places import Places
from ddx_tools.logs.watchdog_reports import Report
from ddx_tools.model import Finding, Severity, rank_list

_EVIDENCE_LIMIT = 8
_HALVES = ("SEND", "RECV")
_BLOCKS = {None, "COALESCED"}
"""What may hold either half: several operations under one name, or none told."""


def transfer_findings(reports: list[Report], crowd: Crowd, places: Places, contexts: RankContexts) -> list[Finding]:
    """Ranks that all wait in a send, or some in one half of a transfer and all others in collectives; by attempt.

    A send waits for its receiver. If every rank of the job is held in one, each of them waits for a rank that is held
    in a send itself: there is a circle, whoever sends to whom. If nobody is in the other half, and who is in none is
    held in a collective, the waiting ends at those: they went on without their part, or have it behind the collective.
    """
    oldest: dict[int, dict[int, Report]] = defaultdict(dict)
    for report in reports:
        if report.timed_out and report.rank is not None:
            before = oldest[report.event.attempt].setdefault(report.rank, report)
            if (report.seq or 0) < (before.seq or 0):
                oldest[report.event.attempt][report.rank] = report
    found = []
    for attempt, waiting in sorted(oldest.items()):
        if len(waiting) < 2 or not waiting.keys() >= crowd.everybody:
            continue
        halves = {report.op_type for report in waiting.values() if report.op_type in _HALVES}
        elsewhere = {rank: report for rank, report in waiting.items() if report.op_type not in _HALVES}
        if halves == {"SEND"} and not elsewhere:
            found.append(_circle(attempt, waiting, crowd, places, contexts))
        elif len(halves) == 1 and elsewhere and not _BLOCKS & {report.op_type for report in elsewhere.values()}:
            found.append(_one_half(attempt, waiting, elsewhere, crowd, places, contexts))
    return found


def _one_half(
    attempt: int,
    waiting: dict[int, Report],
    elsewhere: dict[int, Report],
    crowd: Crowd,
    places: Places,
    contexts: RankContexts,
) -> Finding:
    ranks, held = sorted(elsewhere), sorted(waiting.keys() - elsewhere.keys())
    half = str(waiting[held[0]].op_type)
    other = next(name for name in _HALVES if name != half)
    summary = (
        f"{rank_list(held).capitalize()} wait in a {half.lower()}, and of the ranks that the log speaks of "
        f"nobody is in a {other.lower()}: {rank_list(ranks)} {'is' if len(ranks) == 1 else 'are'} in a collective."
    )
    told = [waiting[rank] for rank in (*ranks, *held)]
    facts = {"operation": half.lower()}
    return _finding("p2p.unmatched", summary, attempt, ranks, told, facts, crowd, places, contexts)


def _circle(attempt: int, waiting: dict[int, Report], crowd: Crowd, places: Places, contexts: RankContexts) -> Finding:
    ranks = sorted(waiting)
    summary = (
        f"All ranks that the log speaks of ({rank_list(ranks)}) are held in a send: each waits for one that "
        "sends itself and receives nothing."
    )
    facts = {"operations": {"send": ranks}, "operation": "send"}
    told = [waiting[rank] for rank in ranks]
    return _finding("p2p.circular_wait", summary, attempt, ranks, told, facts, crowd, places, contexts)


def _finding(
    code: str,
    summary: str,
    attempt: int,
    ranks: list[int],
    told: list[Report],
    facts: Mapping[str, object],
    crowd: Crowd,
    places: Places,
    contexts: RankContexts,
) -> Finding:
    """`ranks` are blamed; `told` are the reports that say it, theirs among them."""
    hosts = {report.event.row["host"] for report in told if report.rank in ranks and report.event.row["host"]}
    # A log of the first stages of a longer pipeline looks the same as one of all.
    known = {**facts, "complete": crowd.complete, "basis": "log", "attempts": [attempt] if attempt else None}
    return Finding(
        code=code,
        severity=Severity.FAILURE if crowd.complete else Severity.WARNING,
        ranks=ranks,
        hosts=sorted(hosts),
        summary=summary,
        evidence=[report.event.evidence for report in told[:_EVIDENCE_LIMIT]],
        locations=places.of(ranks, attempt) or contexts.places(ranks, attempt),
        attributes={name: value for name, value in known.items() if value is not None},
    )
