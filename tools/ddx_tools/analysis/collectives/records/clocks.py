"""How far the clocks of ranks are apart, from the collectives themselves.

All members see the end of an all_reduce at one moment, give or take the polling of the watchdog (some 100 ms, seconds
at worst). The difference between two ranks' times of that moment, as the median over many collectives, is the
difference of their clocks. Groups that share ranks carry it on from group to group. Where no completion is recorded
(Gloo), the moment of the call has to do: ranks in step call within a moment of each other, but the stages of a pipeline
do not. Ranks of one host read one clock: what they seem to differ by is error, and the middle of them counts for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from ddx_tools.evidence.store import Store
from ddx_tools.model.grouping import gathered

_NS = 1e9
_NOTABLE_S = 1.0
"""Smaller differences are not told from polling and lateness, and matter to nobody here."""
_COLLECTIVES = 200
"""Collectives of a group that are compared, the last ones."""


def clock_offsets(store: Store) -> Mapping[int, float]:
    """Seconds that each rank's clock is ahead of the lowest rank's it can be compared with; small ones are left out.

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
