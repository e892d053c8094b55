"""How far the ranks' clocks are apart, derived from the collectives themselves.

All members see the end of an all_reduce at the same moment, give or take the watchdog's polling (about 100 ms, seconds
at worst). The median difference between two ranks' times for these moments, over many collectives, is the difference
between their clocks. Groups that share ranks carry it from group to group. Where no completion is recorded (Gloo), the
time of the call is used instead: ranks in step call at nearly the same moment, but pipeline stages do not. Ranks of
one host read the same clock: any difference between them is error, and their median counts for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from ddx_tools.evidence.store import Store
from ddx_tools.model.grouping import gathered

_NS = 1e9
_NOTABLE_S = 1.0
"""Smaller differences cannot be distinguished from polling and lateness, and do not matter here."""
_COLLECTIVES = 200
"""How many of a group's last collectives are compared."""


def clock_offsets(store: Store) -> Mapping[int, float]:
    """Seconds by which each rank's clock is ahead of the lowest comparable rank's; small differences are left out.

    Needs the tables `positions` and `chosen`.
    """
    by_group: dict[int, dict[int, float]] = {}
    for row in store.query(_MEDIANS):
        if row["residual"] is not None:
            by_group.setdefault(row["group_id"], {})[row["rank"]] = row["residual"] / _NS
    groups_of = gathered((rank, group_id) for group_id, residuals in by_group.items() for rank in residuals)
    offsets: dict[int, float] = {}
    for start in sorted(groups_of):
        if start in offsets:
            continue
        offsets[start] = 0.0
        pending = [start]
        seen: set[int] = set()
        while pending:
            known = pending.pop()
            for group_id in groups_of[known]:
                if group_id in seen:
                    continue
                seen.add(group_id)
                residuals = by_group[group_id]
                for rank, residual in residuals.items():
                    if rank not in offsets:
                        offsets[rank] = offsets[known] + residual - residuals[known]
                        pending.append(rank)
    for ranks in gathered((row["host"], row["rank"]) for row in store.query(_HOSTS) if row["rank"] in offsets).values():
        offsets.update(dict.fromkeys(ranks, median(offsets[rank] for rank in ranks)))
    return {rank: offset for rank, offset in offsets.items() if abs(offset) >= _NOTABLE_S}


_HOSTS = """
SELECT DISTINCT c.rank, d.host FROM chosen c JOIN fr_dumps d USING (dump) WHERE d.host IS NOT NULL ORDER BY c.rank
"""

_MEDIANS = f"""
WITH moments AS (
    SELECT group_id, seq, rank, max(coalesce(completed_ns, created_ns)) AS moment,
        bool_and(completed_ns IS NULL) AS called
    FROM recorded_numbers JOIN rules USING (call)
    JOIN (SELECT group_id, max(last_done_together) AS last FROM positions GROUP BY group_id) USING (group_id)
    WHERE together AND done AND seq > last - {_COLLECTIVES} GROUP BY group_id, seq, rank
), compared AS (
    SELECT group_id, seq, median(moment) AS middle, min(called) = max(called) AS alike
    FROM moments GROUP BY group_id, seq
)
SELECT group_id, rank, median(moment - middle) FILTER (alike) AS residual
FROM moments JOIN compared USING (group_id, seq) GROUP BY group_id, rank
"""
