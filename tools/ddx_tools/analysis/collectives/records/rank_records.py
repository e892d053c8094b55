"""What is known of each rank's record as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ddx_tools.analysis.collectives.records.usual_waits import patience_for
from ddx_tools.evidence.store import Store

_SMALLEST_RING = 16
"""Nobody sets a ring to fewer entries."""

_OF_ONE_DUMP_NS = 60 * 10**9
"""The ranks of a job that are asked for their records at one time write these within as long."""


@dataclass(frozen=True)
class RankRecord:
    """What is known of one rank's record as a whole."""

    rank: int
    host: str | None
    source: str
    taken_ns: int | None
    latest_sign_ns: int | None
    """The latest time that the dump itself mentions: it was taken at that time or after."""
    wrapped: bool
    """Older entries are gone."""
    only_active: bool
    with_frames: bool
    oldest_done: int | None
    """Record id of the oldest finished operation that it holds."""
    notes_ends_at_once: bool
    """Its backend needs no watchdog for that (Gloo)."""
    hides_transfers: bool
    """Its backend counts sends and receives without recording them (Gloo), and it made some or may be in its first."""


def rank_records(store: Store, dumps: Mapping[int, list[dict[str, Any]]]) -> tuple[dict[int, RankRecord], bool, float]:
    """The records behind the dumps that count, by rank, and what they share: (records, starts seen, patience).

    Starts seen: they tell what has started on the devices; timing is on for all ranks of a job or for none.
    Patience: so many seconds a rank may wait without anything being wrong, by the longest operation that did finish.
    """
    seen = {row["rank"]: row for row in store.query(_SEEN)}
    active = _is_only_active(dumps, seen)
    beginning = {row["rank"] for row in store.query(_BEGINNING)}
    longest_s = max((row["longest_ns"] or 0 for row in seen.values()), default=0) / 1e9
    patience_s = patience_for(longest_s, only_active=active)
    records = {
        rank: _rank_record(rank, mine, seen.get(rank, {}), active, patience_s, begins=rank in beginning)
        for rank, mine in dumps.items()
    }
    return _dated_by_each_other(records, dumps), any(row["starts_seen"] for row in seen.values()), patience_s


_SEEN = """
SELECT rank, min(record_id) FILTER (done) AS oldest_done, bool_or(started_ns IS NOT NULL) AS starts_seen,
    max(completed_ns - created_ns) AS longest_ns,
    coalesce(max(op_id - seq), 0) > 0 AND coalesce(max(p2p_seq), 0) = 0 AS hides_transfers
FROM recorded_numbers GROUP BY rank
"""
# A rank's count shows in its next collective. Of one in its first transfer peers tell, whose transfers came later.
_BEGINNING = """
SELECT DISTINCT rank FROM chosen JOIN (
    SELECT group_id, min(seq) AS first FROM recorded_numbers WHERE op_id > seq
    GROUP BY group_id HAVING coalesce(max(p2p_seq), 0) = 0
) USING (group_id) LEFT JOIN (
    SELECT group_id, rank, max(seq) AS last FROM recorded_numbers GROUP BY group_id, rank
) USING (group_id, rank) WHERE last IS NULL OR last < first
"""


def _is_only_active(dumps: Mapping[int, list[dict[str, Any]]], seen: Mapping[int, Mapping[str, Any]]) -> bool:
    """Whether the dumps leave out what is finished (TORCH_INCLUDE_ONLY_ACTIVE): nothing in them says so.

    Then none holds anything finished, and what is left out leaves gaps in the numbers of some. A ring that has lost all
    that is finished has no gaps, and as many entries as any other of the job.
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
    gloo = any(dump["backend"] == "gloo" for dump in dumps)
    return RankRecord(
        rank=rank,
        host=dumps[0]["host"],
        source=dumps[0]["source"],
        taken_ns=_moment_ns(dumps[0], sign, patience_s),
        latest_sign_ns=sign,
        wrapped=any((dump["first_record"] or 0) > 0 for dump in dumps),
        only_active=only_active or any(dump["only_active"] for dump in dumps),
        with_frames=any(dump["with_frames"] for dump in dumps),
        oldest_done=seen.get("oldest_done"),
        notes_ends_at_once=gloo,
        hides_transfers=(begins or bool(seen.get("hides_transfers"))) and gloo,
    )


def _dated_by_each_other(
    records: dict[int, RankRecord], dumps: Mapping[int, list[dict[str, Any]]]
) -> dict[int, RankRecord]:
    """Records with the times of their files, where files of others, written then, tell when these were taken.

    Files that nobody copied keep the times of their writing, however long their ranks did nothing before.
    """
    by_file = [its.taken_ns for rank, its in records.items() if its.taken_ns and dumps[rank][0]["taken_ns"] is None]
    if not by_file:
        return records
    first, last = min(by_file) - _OF_ONE_DUMP_NS, max(by_file) + _OF_ONE_DUMP_NS
    written = {rank: mine[0]["written_ns"] for rank, mine in dumps.items() if records[rank].taken_ns is None}
    return records | {
        rank: replace(records[rank], taken_ns=time)
        for rank, time in written.items()
        if time is not None and max(first, records[rank].latest_sign_ns or first) <= time <= last
    }


def _moment_ns(dump: Mapping[str, Any], sign_ns: int | None, within_s: float) -> int | None:
    """When it was taken. A file that was written to soon after the last thing that it mentions was written then.

    One that was written to later may be a copy; one that was written to before is a copy that a clock or a tool dated.
    """
    taken_ns: int | None = dump["taken_ns"]
    written_ns: int | None = dump["written_ns"]
    if taken_ns is not None or written_ns is None or sign_ns is None:
        return taken_ns
    return written_ns if 0 <= written_ns - sign_ns < within_s * 1e9 else None
