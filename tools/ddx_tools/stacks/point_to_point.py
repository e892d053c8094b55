"""Ranks that wait in sends and receives: for each other, for nobody, or in pipeline stages out of step."""

from __future__ import annotations

from collections.abc import Sequence

from ddx_tools.model import Finding, Severity, rank_list
from ddx_tools.stacks.common import grouped, make_finding, minority_of
from ddx_tools.stacks.view import RankView
from ddx_tools.store import Store

_ONE_SIDED = {"send": "a receive", "recv": "a send", "isend": "a receive", "irecv": "a send"}


def point_to_point(store: Store, p2p: Sequence[RankView], *, others: int, complete: bool | None) -> list[Finding]:
    """What ranks that do not move in point-to-point operations have in common, and in what they differ."""
    if complete is False:
        return []  # a rank that nobody looked at may be the partner
    operations = {view.operation for view in p2p}
    ranks = [view.rank for view in p2p]
    findings = []
    schedules = _pipeline_schedules(store, p2p)
    by_schedule = grouped(p2p, lambda view: schedules.get(view.rank))
    odd, _, tie = minority_of(by_schedule)
    if len(by_schedule) > 1 and all(schedules.get(view.rank) for view in p2p):
        sides = "; ".join(f"{rank_list([v.rank for v in m])}: {schedules[m[0].rank]}" for m in by_schedule)
        findings.append(
            make_finding(
                "pipeline.schedule_differs",
                Severity.FAILURE,
                odd or p2p,
                f"pipeline stages run different schedules: {sides}",
                minority=bool(odd),
                tie=tie,
                schedules=sorted({str(schedules[rank]) for rank in ranks}),
            )
        )
    if 0 < others < len(p2p):
        return findings  # the few that are in a collective may be the partners that did not come
    one_sided = len(operations) == 1 and next(iter(operations)) in _ONE_SIDED
    if one_sided and len(p2p) > 1:
        operation = str(next(iter(operations)))
        summary = f"{rank_list(ranks)} all wait in {operation}, and no rank is in {_ONE_SIDED[operation]}"
        findings.append(
            make_finding("p2p.circular_wait", Severity.FAILURE, p2p, summary, operations=[operation], complete=complete)
        )
    elif one_sided:
        operation = str(next(iter(operations)))
        summary = f"{rank_list(ranks)} waits in {operation}, and no rank is in {_ONE_SIDED[operation]}"
        findings.append(
            make_finding("p2p.unmatched", Severity.FAILURE, p2p, summary, operation=operation, complete=complete)
        )
    elif not others and len(p2p) > 1:
        summary = f"{rank_list(ranks)} all wait for each other's sends and receives"
        findings.append(
            make_finding(
                "p2p.circular_wait",
                Severity.FAILURE,
                p2p,
                summary,
                operations=sorted(map(str, operations)),
                complete=complete,
            )
        )
    return findings


def _pipeline_schedules(store: Store, views: Sequence[RankView]) -> dict[int, str]:
    """The schedule class each rank is in, where the program text qualifies its frames."""
    rows = store.query(
        "SELECT f.pid, f.host, f.function FROM stack_frames f WHERE f.module LIKE 'torch/distributed/pipelining/%' "
        "AND f.function LIKE '%Schedule%.%' ORDER BY f.snapshot, f.depth DESC"
    )
    classes = {(row["host"], row["pid"]): row["function"].split(".")[0] for row in rows}
    return {v.rank: classes[v.host, v.pid] for v in views if (v.host, v.pid) in classes}
