"""Of a job that makes steps: who is at work of its own in every look, while its peers wait in every look."""

from __future__ import annotations

from collections.abc import Sequence

from ddx_tools.model import Finding, Severity, rank_list
from ddx_tools.parsers.python.frame_classes import frame_rules
from ddx_tools.stacks.common import at, grouped, make_finding
from ddx_tools.stacks.view import RankView
from ddx_tools.store import Store

_LEAST_LOOKS = 2
"""One look finds somebody outside of the collectives in every healthy job."""


def outside_in_every_look(store: Store, views: Sequence[RankView]) -> list[Finding]:
    """One finding for each place in which such ranks were at last; none if not all the others waited each time.

    Few looks are no measurement: they say where a rank is that comes late, not that it does.
    """
    waits = frame_rules().waits_for_peers
    rows = store.query(
        "SELECT host, pid, count(*) AS looks, count(*) FILTER (list_contains(?, activity)) AS waiting "
        "FROM stack_threads WHERE is_main AND role = 'rank' AND rank IS NOT NULL GROUP BY host, pid",
        [sorted(waits)],
    )
    looks = min((row["looks"] for row in rows), default=0)
    outside = {(row["host"], row["pid"]) for row in rows if not row["waiting"]}
    always_waiting = {(row["host"], row["pid"]) for row in rows if row["waiting"] == row["looks"]}
    if looks < _LEAST_LOOKS or len(outside) + len(always_waiting) < len(rows) or len(outside) > len(always_waiting):
        return []
    alone = [view for view in views if (view.host, view.pid) in outside]
    return [_finding(members, looks) for members in grouped(alone, lambda view: (view.activity, view.user_stack))]


def _finding(members: Sequence[RankView], looks: int) -> Finding:
    ranks = rank_list([view.rank for view in members])
    words = frame_rules().words(members[0].activity)
    return make_finding(
        "rank.outside_in_every_look",
        Severity.INFO,
        members,
        f"{ranks} {'was' if len(members) == 1 else 'were'} outside of any collective in {looks} looks, at last "
        f"{words}{at(members[0])}; all other ranks waited in one each time",
        activity=members[0].activity,
        contexts=list(members[0].contexts),
        looks=looks,
    )
