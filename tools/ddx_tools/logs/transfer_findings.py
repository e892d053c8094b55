"""What watchdog reports say of point-to-point operations. They name no peer, so only two patterns are proof."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ddx_tools.analysis.collectives import raising
from ddx_tools.analysis.collectives.raising import Shown, Where
from ddx_tools.logs.crowd import Crowd
from ddx_tools.logs.watchdog_reports import Report
from ddx_tools.logs.whereabouts import Whereabouts
from ddx_tools.model import Finding, Severity, rank_list

_EVIDENCE_LIMIT = 8
_HALVES = ("SEND", "RECV")
_BLOCKS = {None, "COALESCED"}
"""What may hold either half: several operations under one name, or none told."""


def transfer_findings(reports: list[Report], crowd: Crowd, whereabouts: Whereabouts) -> list[Finding]:
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
    return [
        finding
        for attempt, waiting in sorted(oldest.items())
        if len(waiting) > 1 and waiting.keys() >= crowd.everybody
        for finding in _of_attempt(attempt, waiting, crowd, whereabouts)
    ]


def _of_attempt(attempt: int, waiting: dict[int, Report], crowd: Crowd, whereabouts: Whereabouts) -> Iterator[Finding]:
    """The finding about what all ranks wait in, where it is one of the two patterns."""
    halves = {report.op_type for report in waiting.values() if report.op_type in _HALVES}
    elsewhere = [rank for rank, report in sorted(waiting.items()) if report.op_type not in _HALVES]
    held = sorted(waiting.keys() - set(elsewhere))
    if len(halves) != 1 or _BLOCKS & {waiting[rank].op_type for rank in elsewhere}:
        return
    half = str(halves.pop())
    if elsewhere:
        code, ranks = "p2p.unmatched", elsewhere
        summary = (
            f"{rank_list(held).capitalize()} wait in a {half.lower()}, and of the ranks that the log speaks of "
            f"nobody is in a {'recv' if half == 'SEND' else 'send'}: {rank_list(ranks)} "
            f"{'is' if len(ranks) == 1 else 'are'} in a collective."
        )
    elif half == "SEND":
        code, ranks = "p2p.circular_wait", held
        summary = (
            f"All ranks that the log speaks of ({rank_list(ranks)}) are held in a send: each waits for one that "
            "sends itself and receives nothing."
        )
    else:
        return
    told = [waiting[rank] for rank in dict.fromkeys([*ranks, *held])]
    hosts = {report.event.row["host"] for report in told if report.rank in ranks and report.event.row["host"]}
    lines = [report.event.evidence for report in told[:_EVIDENCE_LIMIT]]
    # A log of the first stages of a longer pipeline looks the same as one of all.
    yield raising.finding(
        code,
        Severity.FAILURE if crowd.complete else Severity.WARNING,
        ranks,
        summary,
        Where("log", operation=half.lower(), attempts=[attempt] if attempt else []),
        Shown(lines, whereabouts.places(ranks, attempt), hosts),
        complete=crowd.complete,
    )
