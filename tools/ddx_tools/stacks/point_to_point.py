"""Ranks that wait in sends and receives: for each other, for nobody, or in pipeline stages out of step."""

from __future__ import annotations

from collections.abc import Sequence

from ddx_tools.model import Finding, Severity, rank_list
from ddx_tools.stacks.common import grouped, make_finding, minority_of
from ddx_tools.stacks.view import RankView
from ddx_tools.store import Store

_ONE_SIDED = {"send": "a receive", "recv": "a send", "isend": "a receive", "irecv": "a send"}


def point_to_point(store: Store, p2p: Sequence[RankView], *, others: int) -> list[Finding]:
    """What ranks that do not move in point-to-point operations have in common, and in what they differ.

    `others` is how many ranks wait in collectives meanwhile: if they are few, they may be the partners.
    """
    findings = _different_schedules(store, p2p)
    if not 0 < others < len(p2p):
        findings += _nobody_answers(p2p, alone=not others)
    return findings


def _different_schedules(store: Store, p2p: Sequence[RankView]) -> list[Finding]:
    schedules = _pipeline_schedules(store, p2p)
    by_schedule = grouped(p2p, lambda view: schedules.get(view.rank))
    if len(by_schedule) < 2 or len(schedules) < len(p2p):
        return []
    odd, _, tie = minority_of(by_schedule)
    sides = "; ".join(f"{rank_list([v.rank for v in m])}: {schedules[m[0].rank]}" for m in by_schedule)
    return [
        make_finding(
            "pipeline.schedule_differs",
            Severity.FAILURE,
            odd or p2p,
            f"pipeline stages run different schedules: {sides}",
            minority=bool(odd),
            tie=tie,
            schedules=sorted(set(schedules.values())),
        )
    ]


def _nobody_answers(p2p: Sequence[RankView], *, alone: bool) -> list[Finding]:
    """All send, or all receive, or (`alone`) all ranks of the job wait in operations of either kind."""
    operations = sorted({str(view.operation) for view in p2p})
    who = rank_list([view.rank for view in p2p])
    operation, many = operations[0], len(p2p) > 1
    if len(operations) == 1 and operation in _ONE_SIDED:
        verb = "all wait" if many else "waits"
        summary = f"{who} {verb} in {operation}, and no rank is in {_ONE_SIDED[operation]}"
        if not many:
            return [make_finding("p2p.unmatched", Severity.FAILURE, p2p, summary, operation=operation)]
    elif alone and many:
        summary = f"{who} all wait for each other's sends and receives"
    else:
        return []
    return [make_finding("p2p.circular_wait", Severity.FAILURE, p2p, summary, operations=operations)]


def _pipeline_schedules(store: Store, views: Sequence[RankView]) -> dict[int, str]:
    """The schedule class each rank is in, where the program text qualifies its frames."""
    rows = store.query(
        "SELECT f.pid, f.host, f.function FROM stack_frames f WHERE f.module LIKE 'torch/distributed/pipelining/%' "
        "AND f.function LIKE '%Schedule%.%' ORDER BY f.snapshot, f.depth DESC"
    )
    classes = {(row["host"], row["pid"]): row["function"].split(".")[0] for row in rows}
    return {v.rank: classes[v.host, v.pid] for v in views if (v.host, v.pid) in classes}
