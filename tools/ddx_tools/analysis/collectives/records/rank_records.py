"""Summary of each rank's flight record as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ddx_tools.analysis.collectives.records.attempts import LIVE
from ddx_tools.analysis.collectives.records.usual_waits import patience_for
from ddx_tools.evidence.store import Store

_SMALLEST_RING = 16
"""No ring buffer is configured with fewer entries."""

_OF_ONE_DUMP_NS = 60 * 10**9
"""Ranks of a job that are asked for their records at the same time write them within this period."""


@dataclass(frozen=True)
class RankRecord:
    """Summary of one rank's record: when it was taken, and what its recorder keeps."""

    rank: int
    host: str | None
    source: str
    taken_ns: int | None
    latest_sign_ns: int | None
    """The latest time that the dump itself mentions: it was taken then or later."""
    wrapped: bool
    """Older entries were overwritten."""
    only_active: bool
    with_frames: bool
    oldest_done: int | None
    """Record id of the oldest finished operation in the record."""
    notes_ends_at_once: bool
    """Its backend records the end of an operation without a watchdog (Gloo)."""
    live: bool
    """It was taken from the running process, at the same moment as its peers' records."""
    hides_transfers: bool
    """Its backend counts sends and receives without recording them (Gloo), and the rank made some or may be in one."""
    dated_by_file: bool
    """Only its file's time shows when it was taken, perhaps on the clock of a file server."""


def rank_records(store: Store, dumps: Mapping[int, list[dict[str, Any]]]) -> tuple[dict[int, RankRecord], bool, float]:
    """The records from the dumps that count, per rank, and two facts they share: (records, starts seen, patience).

    Starts seen: they show what has started on the devices; timing is on for all ranks of a job or for none.
    Patience: the seconds that a rank may wait with nothing wrong, judged by the longest operation that finished.
    """
    seen = {row["rank"]: row for row in store.query(_SEEN)}
    active = _is_only_active(dumps, seen)
    beginning = {row["rank"] for row in store.query(_BEGINNING)}
    longest_s = max((row["longest_ns"] or 0 for row in seen.values()), default=0) / 1e9
    asked = any(mine[0]["origin"] in LIVE or mine[0]["taken_ns"] is not None for mine in dumps.values())
    patience_s = patience_for(longest_s, only_active=active, asked=asked)
    records = {
        rank: _rank_record(rank, mine, seen.get(rank, {}), active, patience_s, begins=rank in beginning)
        for rank, mine in dumps.items()
    }
    return _dated_by_each_other(records, dumps), any(row["starts_seen"] for row in seen.values()), patience_s


# A watchdog gives up on an operation when its timeout is over, and the record is written then. The parts of a batch
# never count as finished; its closing entry does.
_SEEN = """
SELECT rank, min(n.record_id) FILTER (n.done) AS oldest_done, bool_or(started_ns IS NOT NULL) AS starts_seen,
    max(completed_ns - created_ns) AS longest_ns,
    coalesce(max(op_id - seq), 0) > 0 AND coalesce(max(p2p_seq), 0) = 0 AS hides_transfers,
    min(created_ns + timeout_ms * 1000000) FILTER (NOT n.done AND NOT coalesce(b.done, false)) AS times_out_ns,
    bool_or(retired AND NOT n.done AND NOT coalesce(b.done, false)) AS gave_up
FROM recorded_numbers n JOIN fr_calls USING (call) LEFT JOIN batches b USING (rank, group_id, seq, p2p_seq)
GROUP BY rank
"""
# A rank's count appears in its next collective. A rank in its first transfer shows by peers that made theirs later.
_BEGINNING = """
SELECT DISTINCT rank FROM chosen JOIN (
    SELECT group_id, min(seq) AS first FROM recorded_numbers WHERE op_id > seq
    GROUP BY group_id HAVING coalesce(max(p2p_seq), 0) = 0
) USING (group_id) LEFT JOIN (
    SELECT group_id, rank, max(seq) AS last FROM recorded_numbers GROUP BY group_id, rank
) USING (group_id, rank) WHERE last IS NULL OR last < first
"""


def _is_only_active(dumps: Mapping[int, list[dict[str, Any]]], seen: Mapping[int, Mapping[str, Any]]) -> bool:
    """Whether the dumps leave out finished entries (TORCH_INCLUDE_ONLY_ACTIVE), which nothing in them states.

    If they do, no dump holds a finished entry, and some have gaps in their numbers. A ring that merely lost all its
    finished entries has no gaps, and as many entries as any other ring of the job.
    """
    if not seen or any(row["oldest_done"] is not None for row in seen.values()):
        return False
    every = [dump for mine in dumps.values() for dump in mine if dump["first_record"] is not None]
    gaps = any(dump["last_record"] - dump["first_record"] >= dump["entries"] for dump in every)
    counts = {dump["entries"] for dump in every if dump["first_record"] > 0}
    return gaps or len(counts) > 1 or max(counts, default=_SMALLEST_RING) < _SMALLEST_RING


def _rank_record(
    rank: int,
    dumps: list[dict[str, Any]],
    seen: Mapping[str, Any],
    only_active: bool,
    patience_s: float,
    *,
    begins: bool,
) -> RankRecord:
    sign = max((dump["latest_ns"] for dump in dumps if dump["latest_ns"] is not None), default=None)
    times_out_ns = seen.get("times_out_ns")
    if sign is not None and times_out_ns is not None and seen["gave_up"]:
        sign = max(sign, times_out_ns)
    gloo = any(dump["backend"] == "gloo" for dump in dumps)
    taken_ns = _moment_ns(dumps[0], sign, times_out_ns, patience_s)
    return RankRecord(
        rank=rank,
        host=dumps[0]["host"],
        source=dumps[0]["source"],
        taken_ns=taken_ns,
        latest_sign_ns=sign,
        wrapped=any((dump["first_record"] or 0) > 0 for dump in dumps),
        only_active=only_active or any(dump["only_active"] for dump in dumps),
        with_frames=any(dump["with_frames"] for dump in dumps),
        oldest_done=seen.get("oldest_done"),
        notes_ends_at_once=gloo,
        live=dumps[0]["origin"] in LIVE,
        hides_transfers=(begins or bool(seen.get("hides_transfers"))) and gloo,
        dated_by_file=taken_ns is not None and dumps[0]["taken_ns"] is None,
    )


def _dated_by_each_other(
    records: dict[int, RankRecord], dumps: Mapping[int, list[dict[str, Any]]]
) -> dict[int, RankRecord]:
    """Records dated by their files' times, if other files written at that time show when these were taken.

    A file that was never copied keeps the time at which it was written, however long its rank had done nothing.
    """
    by_file = [its.taken_ns for rank, its in records.items() if its.taken_ns and dumps[rank][0]["taken_ns"] is None]
    if not by_file:
        return records
    first, last = min(by_file) - _OF_ONE_DUMP_NS, max(by_file) + _OF_ONE_DUMP_NS
    written = {rank: mine[0]["written_ns"] for rank, mine in dumps.items() if records[rank].taken_ns is None}
    return records | {
        rank: replace(records[rank], taken_ns=time, dated_by_file=True)
        for rank, time in written.items()
        if time is not None and max(first, records[rank].latest_sign_ns or first) <= time <= last
    }


def _moment_ns(dump: Mapping[str, Any], sign_ns: int | None, times_out_ns: int | None, within_s: float) -> int | None:
    """When a dump was taken: its file's time, if that is soon after the last event that the dump mentions.

    Or soon after `times_out_ns`, when the watchdog gives up on its first unfinished operation and has the records
    written. A file with another time may be a copy; one with an earlier time was dated by another clock or a tool.
    """
    taken_ns: int | None = dump["taken_ns"]
    written_ns: int | None = dump["written_ns"]
    if taken_ns is not None or written_ns is None or sign_ns is None:
        return taken_ns
    if times_out_ns is not None and 0 <= written_ns - times_out_ns < _OF_ONE_DUMP_NS:
        return written_ns
    return written_ns if 0 <= written_ns - sign_ns < within_s * 1e9 else None
