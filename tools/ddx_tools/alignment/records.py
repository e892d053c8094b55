"""Flight records of all ranks as the analysis reads them: summaries by rank and group, entries only where asked for.

Millions of entries stay in the store. What is held here is one line for each member of each group, and the
operations that ranks are stuck in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ddx_tools.alignment import selection
from ddx_tools.alignment.clocks import clock_offsets
from ddx_tools.alignment.comparable import Rules
from ddx_tools.alignment.transfers import make_batches
from ddx_tools.model import Evidence, Location
from ddx_tools.store import Store

SETTLED_S = 2.0
"""Shorter waits, or dumps closer in time, say nothing: ranks of a healthy job differ by as much."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One operation of one rank."""

    rank: int
    record_id: int
    seq: int
    op: str
    input_sizes: str | None
    input_dtypes: str | None
    output_sizes: str | None
    output_dtypes: str | None
    input_splits: str | None
    output_splits: str | None
    state: str | None
    done: bool
    created_ns: int | None
    started_ns: int | None
    completed_ns: int | None
    timeout_ms: int | None
    is_p2p: bool
    p2p_seq: int | None
    peer: str | None
    user_file: str | None
    user_line: int | None
    user_function: str | None
    site: str | None
    contexts: tuple[str, ...]
    """What encloses the call, as far as its frames show it (checkpoint, fsdp, evaluation, …)."""
    source: str

    def location(self) -> Location | None:
        """The user's line that made the call; None without frames."""
        if self.user_file is None:
            return None
        return Location(file=self.user_file, line=self.user_line, function=self.user_function)

    def evidence(self) -> Evidence:
        """Where a reader finds the entry, and its words."""
        sizes, dtypes = (
            (self.input_sizes, self.input_dtypes)
            if self.input_sizes not in (None, "[]")
            else (self.output_sizes, self.output_dtypes)
        )
        words = f"rank {self.rank} seq {self.seq} {self.op} {sizes or ''} {dtypes or ''}".rstrip()
        place = self.location()
        if place:
            words += f" at {place.short()}"
        words += "" if self.done else ", not finished"
        return Evidence(source=f"{self.source}#record_id={self.record_id}", quote=words[:400])


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
    hides_transfers: bool
    """Its backend counts sends and receives without recording them (Gloo)."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far one rank came in one group, by sequence numbers of collectives; None where nothing says it."""

    first_recorded: int | None = None
    last_recorded: int | None = None
    last_done: int | None = None
    last_done_together: int | None = None
    """The last finished one that nobody can finish before all entered it."""
    enqueued: int | None = None
    """From the counters, which outlive the ring buffer. So are the next two."""
    started: int | None = None
    completed: int | None = None

    @property
    def entered(self) -> int | None:
        """The last collective that the rank is known to have entered; None if the record cannot tell."""
        known = [number for number in (self.last_recorded, self.enqueued) if number is not None]
        return max(known, default=None)


@dataclass
class Group:
    """One process group and how far its members came."""

    id: int
    key: str
    name: str
    description: str
    members: tuple[int, ...] | None
    positions: dict[int, Position] = field(default_factory=dict)
    pending: dict[int, Entry] = field(default_factory=dict)
    """By rank: its oldest collective that is not finished."""
    at: dict[int, dict[int, Entry]] = field(default_factory=dict)
    """What every rank recorded under the sequence numbers of `pending`, by number and rank."""

    @property
    def label(self) -> str:
        """The group for a person: its description, and its name where that says more."""
        if self.description in ("", "undefined"):
            return f"group {self.name or self.key}"
        return self.description

    @cached_property
    def last_finished_together(self) -> tuple[int, int | None, int]:
        """The last collective that some rank finished and nobody finishes alone; that rank; the last of all others."""
        best, owner, second = -1, None, -1
        for rank, position in self.positions.items():
            number = -1 if position.last_done_together is None else position.last_done_together
            if number > best:
                best, owner, second = number, rank, best
            else:
                second = max(second, number)
        return best, owner, second

    def finished_by_peers(self, rank: int) -> int:
        """The last collective that some peer finished and that nobody finishes alone; -1 if none is known."""
        best, owner, second = self.last_finished_together
        return second if owner == rank else best

    def is_overtaken(self, rank: int) -> bool:
        """Whether a peer finished a collective that needed this rank, and the rank's record lacks it."""
        finished = self.finished_by_peers(rank)
        return finished >= 0 and self.entered(rank, finished) is False

    def ranks(self) -> tuple[int, ...]:
        """The members, or, where no record lists them, the ranks that recorded something in the group."""
        return self.members if self.members is not None else tuple(sorted(self.positions))

    def entered(self, rank: int, seq: int) -> bool | None:
        """Whether a rank entered the collective `seq`; None if its record cannot tell."""
        position = self.positions.get(rank)
        entered = None if position is None else position.entered
        return None if entered is None else entered >= seq


class Records:
    """All ranks' records of one job, over the store that holds the entries."""

    def __init__(self, store: Store) -> None:
        self.store = store
        chosen = selection.select(store)
        Rules(store)
        make_batches(store)
        self.world_size = chosen.world_size
        self.left_out = chosen.left_out
        seen = {row["rank"]: row for row in self.query(_SEEN)}
        self.starts_seen = any(row["starts_seen"] for row in seen.values())
        """The records tell what has started on the devices: timing is on for all ranks of a job or for none."""
        active = _is_only_active(chosen.dumps, seen)
        self.ranks = {
            rank: _rank_record(rank, dumps, seen.get(rank, {}), active) for rank, dumps in chosen.dumps.items()
        }
        self.longest_s = max((row["longest_ns"] or 0 for row in seen.values()), default=0) / 1e9
        """How long the longest operation took that did finish, from its call to its noticed end; 0 if none tells."""
        self.groups = {row["group_id"]: _group(row) for row in chosen.groups}
        self._load_positions()
        self._load_pending()
        self.clock_offsets_s = clock_offsets(store)

    def true_ns(self, rank: int, time_ns: int) -> int:
        """A time of a rank's clock, on the clock that all ranks are compared by."""
        return time_ns - int(self.clock_offsets_s.get(rank, 0.0) * 1e9)

    def query(self, sql: str, parameters: list[Any] | None = None) -> list[dict[str, Any]]:
        """Rows over the store, and the views `chosen`, `recorded` and `rules` in it."""
        return self.store.query(sql, parameters)

    def execute(self, sql: str) -> None:
        """Make a temporary table or view."""
        self.store.execute(sql)

    def entries(self, group: Group, condition: str, parameters: Iterable[Any] = ()) -> list[Entry]:
        """Entries of a group that meet an SQL condition on the view `recorded`, by rank and record id."""
        rows = self.query(
            f"SELECT * FROM recorded WHERE group_id = ? AND ({condition}) ORDER BY rank, record_id, seq",
            [group.id, *parameters],
        )
        return [_entry(row) for row in rows]

    def entries_of(self, wanted: Iterable[tuple[int, int, int]]) -> list[Entry]:
        """The entries of (rank, group id, record id), in that order."""
        keys = list(wanted)
        if not keys:
            return []
        listed = ", ".join(f"({rank}, {group_id}, {record_id})" for rank, group_id, record_id in keys)
        rows = self.query(f"SELECT * FROM recorded WHERE (rank, group_id, record_id) IN ({listed})")
        found = {(row["rank"], row["group_id"], row["record_id"]): _entry(row) for row in rows}
        return [found[key] for key in keys if key in found]

    def collective(self, group: Group, seq: int) -> dict[int, Entry]:
        """What every rank recorded under one sequence number of a group."""
        return _by_rank(self.entries(group, "NOT is_p2p AND seq = ?", [seq]))

    def _load_positions(self) -> None:
        counters = {
            (row["group_id"], row["rank"]): row
            for row in self.query(
                "SELECT group_id, rank, max(last_enqueued) AS enqueued, max(last_started) AS started, "
                "max(last_completed) AS completed FROM chosen "
                # The counters of a group that does point-to-point operations mix their numbers with the collectives'.
                "ANTI JOIN (SELECT DISTINCT group_id FROM recorded_numbers WHERE p2p_seq > 0) USING (group_id) "
                "GROUP BY group_id, rank"
            )
        }
        recorded = {(row["group_id"], row["rank"]): row for row in self.query(_POSITIONS)}
        for group_id, rank in sorted({**counters, **recorded}, key=lambda key: (key[0], key[1])):
            counted: Mapping[str, Any] = counters.get((group_id, rank), {})
            seen: Mapping[str, Any] = recorded.get((group_id, rank), {})
            # A complete record without the group says that the rank never called anything in it.
            nothing = -1 if not seen and not (self.ranks[rank].wrapped or self.ranks[rank].only_active) else None
            self.groups[group_id].positions[rank] = Position(
                seen.get("first_seq"),
                seen.get("last_seq"),
                seen.get("last_done"),
                seen.get("last_done_together"),
                nothing if counted.get("enqueued") is None else counted["enqueued"],
                counted.get("started"),
                counted.get("completed"),
            )

    def _load_pending(self) -> None:
        """The oldest unfinished collective of each rank and group. What lies before a finished one is finished."""
        oldest = self.query(_OLDEST_PENDING)
        for row in oldest:
            self.groups[row["group_id"]].pending[row["rank"]] = _entry(row)
        wanted = sorted({(row["group_id"], row["seq"]) for row in oldest})
        for group_id, seq in wanted:
            self.groups[group_id].at[seq] = {}
        for row in self.query(_SAME_NUMBERS):
            together = self.groups[row["group_id"]].at[row["seq"]]
            _take(together, _entry(row))


_SEEN = """
SELECT rank, min(record_id) FILTER (done) AS oldest_done, bool_or(started_ns IS NOT NULL) AS starts_seen,
    max(completed_ns - created_ns) AS longest_ns,
    coalesce(max(op_id - seq), 0) > 0 AND coalesce(max(p2p_seq), 0) = 0 AS hides_transfers
FROM recorded_numbers GROUP BY rank
"""

# The entry that closes a batch of transfers carries the number of the collective before it.
_COLLECTIVES = """
SELECT * FROM recorded_numbers JOIN rules USING (call) ANTI JOIN batches USING (rank, group_id, record_id)
WHERE NOT is_p2p AND seq IS NOT NULL
"""

_POSITIONS = f"""
SELECT group_id, rank, min(seq) AS first_seq, max(seq) AS last_seq, max(seq) FILTER (done) AS last_done,
    max(seq) FILTER (done AND together) AS last_done_together
FROM ({_COLLECTIVES}) GROUP BY group_id, rank
"""

# An operation may be marked late (Gloo's `retired`): what lies before a finished one of the group is finished.
_PENDING = f"""
SELECT r.group_id, r.rank, min(r.seq) AS seq
FROM ({_COLLECTIVES}) r JOIN ({_POSITIONS}) p ON p.group_id = r.group_id AND p.rank = r.rank
WHERE NOT r.done AND r.seq > coalesce(p.last_done, -1) GROUP BY r.group_id, r.rank
"""

_OLDEST_PENDING = f"""
SELECT e.* FROM recorded e JOIN ({_PENDING}) p ON e.group_id = p.group_id AND e.rank = p.rank AND e.seq = p.seq
ANTI JOIN batches b ON b.rank = e.rank AND b.group_id = e.group_id AND b.record_id = e.record_id
WHERE NOT e.is_p2p ORDER BY e.group_id, e.rank, e.op = 'coalesced' DESC, e.record_id
"""

_SAME_NUMBERS = f"""
SELECT e.* FROM recorded e SEMI JOIN ({_PENDING}) p ON e.group_id = p.group_id AND e.seq = p.seq
ANTI JOIN batches b ON b.rank = e.rank AND b.group_id = e.group_id AND b.record_id = e.record_id
WHERE NOT e.is_p2p ORDER BY e.group_id, e.seq, e.rank, e.record_id
"""


def _by_rank(entries: Iterable[Entry]) -> dict[int, Entry]:
    found: dict[int, Entry] = {}
    for entry in entries:
        _take(found, entry)
    return found


def _take(by_rank: dict[int, Entry], entry: Entry) -> None:
    """A coalesced block shares one sequence number, and its closing entry tells nothing of its own."""
    if entry.op != "coalesced" or entry.rank not in by_rank:
        by_rank[entry.rank] = entry


def _is_only_active(dumps: Mapping[int, list[dict[str, Any]]], seen: Mapping[int, Mapping[str, Any]]) -> bool:
    """Whether the dumps leave out what is finished (TORCH_INCLUDE_ONLY_ACTIVE): nothing in them says so.

    Then none holds anything finished. Rings that lost all of it hold as many entries each as a ring has.
    """
    if not seen or any(row["oldest_done"] is not None for row in seen.values()):
        return False
    return len({dump["entries"] for mine in dumps.values() for dump in mine if dump["first_record"]}) > 1


def _rank_record(rank: int, dumps: list[dict[str, Any]], seen: Mapping[str, Any], only_active: bool) -> RankRecord:
    signs = [dump["latest_ns"] for dump in dumps if dump["latest_ns"] is not None]
    return RankRecord(
        rank=rank,
        host=dumps[0]["host"],
        source=dumps[0]["source"],
        taken_ns=dumps[0]["taken_ns"],
        latest_sign_ns=max(signs, default=None),
        wrapped=any((dump["first_record"] or 0) > 0 for dump in dumps),
        only_active=only_active or any(dump["only_active"] for dump in dumps),
        with_frames=any(dump["with_frames"] for dump in dumps),
        oldest_done=seen.get("oldest_done"),
        hides_transfers=bool(seen.get("hides_transfers")) and any(dump["backend"] == "gloo" for dump in dumps),
    )


def _group(row: dict[str, Any]) -> Group:
    members = None if row["members"] is None else tuple(row["members"])
    return Group(row["group_id"], row["group_key"], row["name"] or "", row["description"] or "", members)


def _entry(row: dict[str, Any]) -> Entry:
    return Entry(
        rank=row["rank"],
        record_id=-1 if row["record_id"] is None else row["record_id"],
        seq=-1 if row["seq"] is None else row["seq"],
        op=row["op"] or "",
        input_sizes=row["input_sizes"],
        input_dtypes=row["input_dtypes"],
        output_sizes=row["output_sizes"],
        output_dtypes=row["output_dtypes"],
        input_splits=row["input_splits"],
        output_splits=row["output_splits"],
        state=row["state"],
        done=bool(row["done"]),
        created_ns=row["created_ns"],
        started_ns=row["started_ns"],
        completed_ns=row["completed_ns"],
        timeout_ms=row["timeout_ms"],
        is_p2p=bool(row["is_p2p"]),
        p2p_seq=row["p2p_seq"],
        peer=row["peer"],
        user_file=row["user_file"],
        user_line=row["user_line"],
        user_function=row["user_function"],
        site=row["path"],
        contexts=tuple(json.loads(row["contexts"] or "[]")),
        source=row["source"],
    )
