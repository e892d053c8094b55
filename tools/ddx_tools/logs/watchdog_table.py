"""Watchdog and desync reports as a table: by group and rank, what it waits in and how far it got."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from ddx_tools.analysis.collectives.party import Call, Job, Member, Party
from ddx_tools.logs.watchdog_reports import Report
from ddx_tools.logs.whereabouts import Whereabouts
from ddx_tools.parsers.nccl.watchdog_lines import POINT_TO_POINT, sizes_to_agree_on


def watchdog_parties(reports: list[Report], job: Job, whereabouts: Whereabouts) -> list[Party]:
    """All groups whose ranks' numbers count the same operations; reports of ranks that nothing names are left out."""
    by_group: dict[tuple[int, str | None], list[Report]] = defaultdict(list)
    for report in reports:
        if report.rank is not None:
            by_group[report.event.attempt, report.group].append(report)
    return [
        Party(
            "log",
            _members(told),
            job,
            label=next((report.label for report in told if report.label), None),
            is_world=any(report.is_world for report in told),
            named=group is not None,
            attempts=[attempt] if attempt else [],
            places=partial(whereabouts.places, attempt=attempt),
            contexts=partial(_contexts, whereabouts, attempt),
        )
        for (attempt, group), told in by_group.items()
        if _is_comparable(group, told)
    ]


def _contexts(whereabouts: Whereabouts, attempt: int, ranks: Sequence[int], peers: Collection[int]) -> dict[str, Any]:
    if (own := whereabouts.own(ranks, peers, attempt)) is None:
        return {}
    enclosing = sorted(own.contexts)
    return {"own_contexts": enclosing, "contexts": enclosing, "user_functions": list(own.user_functions)}


def _members(reports: list[Report]) -> dict[int, Member]:
    members: dict[int, Member] = {}
    for report in reports:
        if report.rank is None:
            continue
        member = members.setdefault(report.rank, Member(report.rank))
        member.evidence.append(report.event.evidence)
        if host := report.event.row["host"]:
            member.hosts.add(host)
        if report.timed_out:
            first = member.call
            # The watchdog meets the oldest first, and repeats it as it ends the process; older versions go on.
            if first is None or (report.seq is not None and first.seq is not None and report.seq < first.seq):
                member.call = _call(report)
        if report.last_enqueued is not None and report.last_enqueued >= (member.enqueued or -1):
            member.enqueued, member.completed = report.last_enqueued, report.last_completed
    return dict(sorted(members.items()))


def _call(report: Report) -> Call:
    size = sizes_to_agree_on(report.op_type or "", report.sizes)
    return Call(
        {"operation": report.operation or "", **({"shape": size} if size is not None else {})},
        report.event.evidence,
        report.seq,
        None if report.elapsed_ms is None else report.elapsed_ms / 1000,
        None if report.timeout_ms is None else report.timeout_ms / 1000,
    )


def _is_comparable(group: str | None, reports: list[Report]) -> bool:
    if any(report.op_type in POINT_TO_POINT for report in reports):
        return False
    if group is not None:
        return True
    # No line names the group. Where members are counted otherwise than ranks, or a rank goes back, there are several.
    if any(None not in (report.member, report.rank) and report.member != report.rank for report in reports):
        return False
    seen: dict[int | None, int] = {}
    for report in reports:
        if report.timed_out and report.seq is not None:
            if report.seq < seen.get(report.rank, report.seq) and not _repeats(report, reports):
                return False
            seen[report.rank] = report.seq
    return True


def _repeats(report: Report, reports: list[Report]) -> bool:
    same = [each for each in reports if (each.rank, each.seq) == (report.rank, report.seq)]
    return same[0] is not report
