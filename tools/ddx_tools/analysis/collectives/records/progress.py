"""Whether the job was moving while its records were taken, and which rank's record shows no progress despite that.

If a peer finished an operation that no rank finishes alone, every member entered and left it. A member whose record
still has it unfinished, or lacks it, was recorded earlier: the job went on meanwhile. Or the completion was not
recorded because the device or the watchdog is stuck: then the record has times later than the peer's completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddx_tools.analysis.collectives.records.device_positions import Fronts
from ddx_tools.analysis.collectives.records.recorded_graph import may_be_a_host
from ddx_tools.analysis.collectives.records.records import Entry, Group, Records
from ddx_tools.analysis.collectives.records.usual_waits import SETTLED_S, STANDING_S
from ddx_tools.analysis.collectives.records.waits import Recorded
from ddx_tools.analysis.collectives.wait_solver import SolvedWaits

_MOMENT_OF_UNDATED_S = 3.0
"""Ranks of a moving job do something at least about this often."""

_AT_WORK = ("inside", "not_started", "idle")
"""The status of ranks that nothing blocks."""


@dataclass(frozen=True)
class Behind:
    """A rank whose record lacks the end of an operation that a peer's record shows as finished."""

    rank: int
    group: Group
    entry: Entry | None
    """The operation that it has unfinished; None if the record ends before it."""
    frozen: bool
    """Its record is clearly later than the peer's completion, so it should show the end."""
    moment: bool
    """Its record was taken only a moment before the peers': ranks in step differ by this much."""


def ranks_behind(records: Records) -> list[Behind]:
    """Find ranks whose record lacks the end of a collective that a peer's record shows as finished.

    The list is ordered by group, then rank.
    """
    found = []
    for group in records.groups.values():
        for rank in group.positions:
            entry = group.pending.get(rank)
            if entry is not None and entry.seq <= group.finished_by_peers(rank):
                found.append(Behind(rank, group, entry, _is_later(records, group, entry), _is_moment(records, rank)))
            elif group.is_overtaken(rank):
                moment = _is_moment(records, rank) and _just_called(records, group, rank)
                found.append(Behind(rank, group, None, frozen=False, moment=moment))
    return found


def frozen_ranks(records: Records, behind: list[Behind], graph: SolvedWaits[Recorded] | None) -> set[int]:
    """Ranks that fail to record the end of what their peers finished, as opposed to having been recorded too early.

    They are few, all waits lead to them, and all other ranks agree with each other: in a moving job more ranks would
    differ, and not all would wait for these. Their records are also later. If no times show that, only a single rank
    qualifies, and not with Gloo, where no device or watchdog is late to record an end.
    """
    ranks = {each.rank for each in behind}
    if graph is None or graph.tie or not ranks or graph.roots.keys() != ranks or 2 * len(ranks) >= len(records.ranks):
        return set()
    undated = all(records.ranks[rank].taken_ns is None for rank in ranks)
    if undated:
        return ranks if len(ranks) == 1 and not any(records.ranks[rank].notes_ends_at_once for rank in ranks) else set()
    return ranks if any(each.frozen for each in behind) else set()


def is_unsettled(
    records: Records, fronts: Fronts, holds: Sequence[Recorded], graph: SolvedWaits[Recorded] | None
) -> bool:
    """Whether the job may still be running: ranks work that do not wait for the same fault as the others.

    In a job that has hung for long, all waits lead to one rank, or to the ranks of one host. The result is False if a
    wait's length is known, or if a log shows an operation that timed out.
    """
    if _waited_out(records):
        return False
    if graph is None or not graph.roots or any(hold.wait_s is not None for hold in graph.holds):
        return False
    alone = {rank for rank, state in graph.roots.items() if state in ("outside", "device_behind", "stands_still")}
    stopped = all(graph.roots[rank] == "outside" for rank in alone)
    if len(alone) > 1 and not (stopped and may_be_a_host(alone) and 2 * len(alone) < len(records.ranks)):
        return True  # Several ranks are missing independently of each other: they are at work.
    accounted = {
        *graph.victims,
        *graph.roots,
        *(rank for hold in holds if not hold.is_complete for rank in hold.waiting),
    }
    return any(rank not in accounted and status in _AT_WORK for rank, status in fronts.status.items())


def _waited_out(records: Records) -> bool:
    """Whether a watchdog reported that an operation which is pending in a rank's record exceeded its timeout."""
    return bool(
        records.query(
            "SELECT 1 FROM log_events l JOIN pending p ON l.rank = p.rank "
            "AND TRY_CAST(l.details->>'seq' AS BIGINT) = p.seq "
            "WHERE l.kind = 'watchdog' AND l.details->>'elapsed_ms' IS NOT NULL LIMIT 1"
        )
    )


def stands_still(holds: Sequence[Recorded]) -> bool:
    """Whether some rank waits for longer than ranks of a moving job do."""
    return any((hold.wait_s or 0.0) >= STANDING_S for hold in holds)


def _is_later(records: Records, group: Group, entry: Entry) -> bool:
    """Whether a rank's record shows a time clearly after a peer's completion of the same operation."""
    record = records.ranks[entry.rank]
    sign = record.taken_ns or record.latest_sign_ns
    finished = [
        records.true_ns(other.rank, other.completed_ns)
        for other in group.at[entry.seq].values()
        if other.completed_ns is not None and other.rank != entry.rank
    ]
    if sign is None:
        return False
    if not finished:
        # Dumps of active work show no completions. What was called this long ago did not end just between two dumps.
        taken = [each.taken_ns for each in records.ranks.values() if each.taken_ns is not None]
        apart_s = (max(taken) - sign) / 1e9 if taken else 0.0
        called = entry.created_ns
        return called is not None and (sign - called) / 1e9 >= max(STANDING_S, 10 * apart_s)
    return (records.true_ns(entry.rank, sign) - min(finished)) / 1e9 >= SETTLED_S


def _just_called(records: Records, group: Group, rank: int) -> bool:
    """Whether what a rank lacks was still being called, or finished, around the time its record was taken."""
    taken = records.ranks[rank].taken_ns
    if taken is None:
        return True
    calls = records.collective(group, group.finished_by_peers(rank)).values()
    times = [(entry.rank, entry.completed_ns or entry.created_ns) for entry in calls]
    signs = [records.true_ns(peer, time) for peer, time in times if time is not None]
    return bool(signs) and (records.true_ns(rank, taken) - max(signs)) / 1e9 < records.patience_s


def _is_moment(records: Records, rank: int) -> bool:
    dated = records.ranks[rank].taken_ns is not None
    # In a moving job, the latest time that an undated record mentions is close to when it was taken.
    told = {each.rank: each.taken_ns if dated else each.latest_sign_ns for each in records.ranks.values()}
    times = {each: records.true_ns(each, time) for each, time in told.items() if time is not None}
    within_s = SETTLED_S if dated else _MOMENT_OF_UNDATED_S
    return rank in times and (max(times.values()) - times[rank]) / 1e9 < within_s
