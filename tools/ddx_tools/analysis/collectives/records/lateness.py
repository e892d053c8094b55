"""Finds ranks that are late to collectives again and again while the job goes on.

All members of a group leave an all_reduce or an all_to_all together. So the rank that spends the least time in it
entered last, and the time that the next to last spent beyond that is what all of them lost. Only times of one rank's
clock are subtracted; clocks are never compared. The end that NCCL records is when a watchdog noticed it (every 100
ms). Gloo records no end, but it blocks, so the rank's next call stands in for it; this does not work for collectives
that are followed by a step's work. If all members are on one host, and so read one clock, the time of the last call
covers those as well. It shows less: a rank that calls last in every step may simply have the most work.

A rank that was late once is last in all collectives that its peers had called before it called the first: with NCCL a
program calls ahead, up to its next wait for the GPU. These are one delay. A collective shows a new one only if most
members called it after those before it had ended.

A rank that is late only to barriers, of which there are few, or by half a minute, writes checkpoints or evaluates: its
peers wait for it on purpose.

Members of a pipeline group do different work per stage, and some stage is always last: they are not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ddx_tools.analysis.collectives import findings as raising
from ddx_tools.analysis.collectives.findings import FindingPlace
from ddx_tools.analysis.collectives.records.quotes import where
from ddx_tools.analysis.collectives.records.records import Group, Records
from ddx_tools.analysis.collectives.records.usual_waits import STANDING_S
from ddx_tools.model.diagnosis import Finding, Severity, rank_list
from ddx_tools.model.grouping import gathered

_CLEARLY_S = 0.15
"""A rank is clearly last if the next to last waited this much longer: more than the watchdog's polling explains."""
_COLLECTIVES = 400
"""How many of a group's last collectives are examined."""
_UNSEEN = 0.25
"""Fewer than this share of a group's members may lack a record: one of these may be as late as others on its host."""
_POLLING_S = 0.1
"""A watchdog notices an end up to this much later than the program."""
_OFTEN = 4
_SHARE = 0.75
"""The same rank must be last in this share of the collectives in which some rank is clearly last."""
_COSTS = 0.05
"""Waiting for it must take this share of the collectives' total time. An occasional checkpoint costs less."""


@dataclass(frozen=True)
class Late:
    """A rank that is clearly last again and again in one group, with the counts behind that."""

    rank: int
    group: Group
    collectives: int
    """How many collectives of the group were compared: those that were called when all before them had ended."""
    last: int
    """How many of them it was clearly last in."""
    others_last: int
    """How many of them another rank was clearly last in."""
    late_s: float
    """By how many seconds it was last, as a median."""
    by_calls: bool
    """Judged only by which rank calls last, not by the time spent inside."""


def late_ranks(records: Records) -> list[Late]:
    """The ranks that are late by themselves, without those that are only late because they wait for one of these."""
    pipelined = _pipelines(records)
    found: dict[int, Late] = {}
    members = gathered(((row["by_calls"], row["group_id"]), row) for row in records.query(_LAST))
    for (by_calls, group_id), rows in sorted(members.items()):
        group = records.groups[group_id]
        ranks = group.ranks()
        unseen = sum(rank not in records.ranks for rank in ranks)
        if group_id in found or (unseen and unseen >= _UNSEEN * len(ranks)):
            continue
        if any(len(pipeline & set(ranks)) > 1 for pipeline in pipelined):
            continue
        rows = [row for row in rows if row["fresh"]]
        clear = [row for row in rows if row["late_s"] >= _CLEARLY_S]
        if len(clear) < _OFTEN:
            continue
        rank, count = Counter(int(row["rank"]) for row in clear).most_common(1)[0]
        lost = [float(row["late_s"]) for row in clear if row["rank"] == rank]
        calls = [int(row["called_ns"]) for row in rows]
        took_s = (max(calls) - min(calls)) / 1e9
        if _waited_for_on_purpose(rows, [row for row in clear if row["rank"] == rank]):
            continue
        if count >= max(_OFTEN, _SHARE * len(clear)) and sum(lost) >= _COSTS * took_s:
            found[group_id] = Late(rank, group, len(rows), count, len(clear) - count, median(lost), by_calls)
    return [late for late in found.values() if not _is_victim(late.rank, found.values())]


def _waited_for_on_purpose(rows: Sequence[Mapping[str, Any]], late: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a rank is late to barriers only, to few or by as long as no step takes: peers wait for a checkpoint."""
    barriers = sum(row["is_barrier"] for row in rows)
    usual_s = median(float(row["late_s"]) for row in late) if late else 0.0
    return all(row["is_barrier"] for row in late) and (4 * barriers < len(rows) or usual_s >= STANDING_S)


def _is_victim(rank: int, found: Iterable[Late]) -> bool:
    """Whether a late rank is late because it waits for another late rank in a group that they share."""
    return any(late.rank != rank and rank in late.group.ranks() for late in found)


def _pipelines(records: Records) -> list[set[int]]:
    """The members of each group that makes more sends and receives than collectives."""
    rows = records.query(
        "SELECT group_id FROM recorded_numbers GROUP BY group_id "
        "HAVING max(greatest(p2p_seq, op_id - seq)) > coalesce(max(seq), 0)"
    )
    return [set(records.groups[row["group_id"]].ranks()) for row in rows]


# How long each member was in each collective, and which rank was in it for the shortest time.
_LAST = f"""
WITH one_clock AS (
    SELECT group_id, count(d.host) = count(*) AND count(DISTINCT d.host) = 1 AS same_host
    FROM chosen JOIN fr_dumps d USING (dump) GROUP BY group_id
), calls AS (
    SELECT n.group_id, n.seq, n.rank, n.created_ns, n.completed_ns,
        n.done AND (r.together OR r.exchange) AS counts,
        k.backend = 'gloo' AS blocks, k.op LIKE '%barrier%' AS is_barrier, same_host,
        max(n.created_ns) OVER (PARTITION BY n.group_id, n.seq) AS last_call_ns,
        lead(n.created_ns) OVER (PARTITION BY n.rank ORDER BY n.record_id) AS next_call_ns
    FROM recorded_numbers n JOIN rules r USING (call) JOIN fr_calls k USING (call) JOIN one_clock USING (group_id)
    WHERE NOT r.is_p2p AND NOT r.closing AND n.seq IS NOT NULL
), ends AS (
    SELECT *, false AS by_calls, CASE WHEN blocks THEN next_call_ns ELSE completed_ns END AS ended_ns FROM calls
    UNION ALL
    SELECT *, true AS by_calls, last_call_ns AS ended_ns FROM calls WHERE blocks AND same_host
), inside AS (
    SELECT by_calls, group_id, seq, rank, is_barrier, created_ns, (ended_ns - created_ns) / 1e9 AS inside_s,
        coalesce(created_ns + {_POLLING_S * 1e9:.0f} >= max(ended_ns) OVER (
            PARTITION BY by_calls, group_id, rank ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), true) AS fresh
    FROM ends JOIN (SELECT group_id, max(seq) AS last FROM calls WHERE counts GROUP BY group_id) USING (group_id)
    WHERE counts AND ended_ns >= created_ns AND seq > last - {_COLLECTIVES}
)
SELECT by_calls, group_id, seq, arg_min(rank, inside_s) AS rank, min(inside_s, 2)[2] - min(inside_s) AS late_s,
    max(created_ns) AS called_ns, bool_or(is_barrier) AS is_barrier, 2 * count(*) FILTER (fresh) > count(*) AS fresh
FROM inside GROUP BY by_calls, group_id, seq HAVING count(*) > 1
"""


def arrives_late(records: Records) -> list[Finding]:
    """One finding for each rank that is repeatedly late, from the group that shows it best."""
    best: dict[int, Late] = {}
    for late in late_ranks(records):
        if late.rank not in best or late.last > best[late.rank].last:
            best[late.rank] = late
    return [_finding(records, late) for late in best.values()]


def _finding(records: Records, late: Late) -> Finding:
    calls = records.entries(late.group, "NOT is_p2p AND rank = ?", [late.rank])
    operations = {entry.op for entry in calls}
    return raising.finding(
        "rank.arrives_late",
        Severity.WARNING,
        [late.rank],
        f"{rank_list([late.rank]).capitalize()} was last to enter {late.last} of {late.collectives} collectives of "
        f"{late.group.label}, by {late.late_s:.1f} s (median); no other rank was last in more than {late.others_last}.",
        where(late.group),
        FindingPlace([entry.evidence() for entry in calls[-1:]]),
        late_s=round(late.late_s, 2),
        collectives=late.collectives,
        last=late.last,
        others_last=late.others_last,
        share=round(late.last / late.collectives, 3),
        by="calls" if late.by_calls else "completions",
        operation=operations.pop() if len(operations) == 1 else None,
    )
