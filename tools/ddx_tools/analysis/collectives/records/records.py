"""Flight records of all ranks as the analysis reads them: summaries per rank and group, entries only on request.

Millions of entries stay in the store. Held here are one row per member of each group, and the operations that ranks
are stuck in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from ddx_tools.analysis.collectives.records import selection
from ddx_tools.analysis.collectives.records.call_order import off_path, off_path_together
from ddx_tools.analysis.collectives.records.clocks import clock_offsets
from ddx_tools.analysis.collectives.records.comparable import Rules, completes_together
from ddx_tools.analysis.collectives.records.entry_words import entry_words
from ddx_tools.analysis.collectives.records.rank_records import rank_records
from ddx_tools.analysis.collectives.records.selection import with_texts
from ddx_tools.analysis.collectives.records.transfers import Transfers, make_batches, pending_transfers
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Evidence, Location


@dataclass(frozen=True, slots=True)
class Entry:
    """A flight-record entry: one operation of one rank."""

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
    path: str | None
    """The call path, from the program's outermost frame to the calling one: equal for equal paths."""
    source: str
    contexts: tuple[str, ...]
    """What encloses the call, according to its frames (checkpoint, fsdp, evaluation, …)."""

    def location(self) -> Location | None:
        """The line of the user's program that made the call; None without frames."""
        if self.user_file is None:
            return None
        return Location(file=self.user_file, line=self.user_line, function=self.user_function)

    def evidence(self) -> Evidence:
        """Evidence that quotes the entry and says where it stands."""
        return Evidence(source=f"{self.source}#record_id={self.record_id}", quote=entry_words(asdict(self)))


_ENTRY = [each.name for each in fields(Entry) if each.name != "contexts"]
"""Columns of the view `recorded`."""
_IF_UNKNOWN: dict[str, Any] = {"record_id": -1, "seq": -1, "op": "", "done": False, "is_p2p": False}


@dataclass(frozen=True, slots=True)
class Position:
    """How far one rank got in one group, as sequence numbers of collectives; None where unknown."""

    first_recorded: int | None = None
    last_recorded: int | None = None
    last_done: int | None = None
    last_done_together: int | None = None
    """The last finished collective of a kind that no rank finishes before all have entered it."""
    enqueued: int | None = None
    """Like the next two, from the counters, which survive when the ring buffer wraps."""
    started: int | None = None
    completed: int | None = None

    @property
    def entered(self) -> int | None:
        """The last collective that the rank is known to have entered; None if the record does not show it."""
        known = [number for number in (self.last_recorded, self.enqueued) if number is not None]
        return max(known, default=None)


@dataclass
class Group:
    """A process group, and how far each of its members got."""

    id: int
    key: str
    name: str
    description: str
    members: tuple[int, ...] | None
    positions: dict[int, Position] = field(default_factory=dict)
    pending: dict[int, Entry] = field(default_factory=dict)
    """Per rank, its oldest unfinished collective."""
    at: dict[int, dict[int, Entry]] = field(default_factory=dict)
    """What every rank recorded under the sequence numbers in `pending`, by number and rank."""

    @property
    def label(self) -> str:
        """The group's name for a person: its description, or its name if that says more."""
        if self.description in ("", "undefined"):
            return f"group {self.name or self.key}"
        return self.description

    @cached_property
    def last_finished_together(self) -> tuple[int, int | None, int]:
        """Return the last finished collective that needs all members, as (number, rank, next number).

        The rank is one that finished it; the next number is the last such collective of all other ranks. Numbers are
        sequence numbers, -1 if none; the rank is then None.
        """
        best, owner, second = -1, None, -1
        for rank, position in self.positions.items():
            number = -1 if position.last_done_together is None else position.last_done_together
            if number > best:
                best, owner, second = number, rank, best
            else:
                second = max(second, number)
        return best, owner, second

    def finished_by_peers(self, rank: int) -> int:
        """Return the sequence number of the last collective that a member other than `rank` finished.

        Only collectives count that no rank finishes before all have entered. The number is -1 if none is known.
        """
        best, owner, second = self.last_finished_together
        return second if owner == rank else best

    def is_overtaken(self, rank: int) -> bool:
        """Whether a peer finished a collective that needed this rank, although the rank's record lacks it."""
        finished = self.finished_by_peers(rank)
        return finished >= 0 and self.entered(rank, finished) is False

    def ranks(self) -> tuple[int, ...]:
        """The members or, if no record lists them, the ranks that recorded something in the group."""
        return self.members if self.members is not None else tuple(sorted(self.positions))

    def last_entered(self, rank: int) -> int | None:
        """The last collective that a rank entered; None if its record does not show it."""
        position = self.positions.get(rank)
        return None if position is None else position.entered

    def entered(self, rank: int, seq: int) -> bool | None:
        """Whether a rank entered the collective `seq`; None if its record does not show it."""
        last = self.last_entered(rank)
        return None if last is None else last >= seq


_MOST_PATIENCE_S = 300.0
"""What is added where clocks differ, at most: NCCL's default timeout still counts as a wait."""


class Records:
    """The flight records of all ranks of one job, over the store that holds the entries."""

    def __init__(self, store: Store) -> None:
        self.store = store
        Rules(store)
        chosen = selection.select(store)
        make_batches(store)
        make_differences(store)
        self.world_size = chosen.world_size
        self.left_out = chosen.left_out
        self.of_other_runs = chosen.of_other_runs
        self.ranks, self.starts_seen, self.patience_s = rank_records(store, chosen.dumps)
        self.groups = {row["group_id"]: _group(row) for row in chosen.groups}
        self._load_positions()
        if any(record.dated_by_file for record in self.ranks.values()):
            # The clock that dates files is not that of all hosts, so a wait may be shorter by as much as these differ.
            offsets = [self.clock_offsets_s.get(rank, 0.0) for rank in self.ranks]
            self.patience_s += min(max(offsets) - min(offsets), _MOST_PATIENCE_S)
        self._load_pending()
        self._infer_finished()

    @cached_property
    def clock_offsets_s(self) -> Mapping[int, float]:
        """Per rank, the seconds by which its clock is ahead (see `clock_offsets`). Computed when times are compared."""
        return clock_offsets(self.store)

    @cached_property
    def only_active(self) -> bool:
        """Whether dumps leave out finished entries, so that there is no history."""
        return any(record.only_active for record in self.ranks.values())

    def true_ns(self, rank: int, time_ns: int) -> int:
        """Convert a time on a rank's clock to the common clock that all ranks are compared on."""
        return time_ns - int(self.clock_offsets_s.get(rank, 0.0) * 1e9)

    def wait_s(self, rank: int, since_ns: int | None) -> float | None:
        """Seconds from a time on a rank's clock until its record was taken; None if one of the two is unknown."""
        taken_ns = self.ranks[rank].taken_ns
        return None if taken_ns is None or since_ns is None else max(0.0, (taken_ns - since_ns) / 1e9)

    @cached_property
    def absent(self) -> frozenset[int]:
        """Ranks of the job or of a group that left no record."""
        members = (group.members or () for group in self.groups.values())
        return frozenset(range(self.world_size or 0)).union(*members) - self.ranks.keys()

    @cached_property
    def off_path(self) -> frozenset[int]:
        """The rank that left the program's path (see the function `off_path`), as a set of at most one.

        It is empty if ranks left no record or finished entries were left out: a call that seems unique may then be
        common.
        """
        return frozenset() if self.absent or self.only_active else off_path(self.store)

    @cached_property
    def off_path_together(self) -> frozenset[int]:
        """The ranks that left the program's path at one place (see the function `off_path_together`).

        The set is empty if ranks left no record or finished entries were left out.
        """
        return frozenset() if self.absent or self.only_active else off_path_together(self.store)

    def transfers(self, *, only_active: bool = False) -> Transfers:
        """Unfinished sends and receives; see `pending_transfers`."""
        members = {group.id: group.members for group in self.groups.values()}
        return pending_transfers(self.store, members, only_active=only_active)

    def query(self, sql: str, parameters: list[Any] | None = None) -> list[dict[str, Any]]:
        """Query the store, including its views `chosen`, `recorded` and `rules`."""
        return self.store.query(sql, parameters)

    def entries(self, group: Group, condition: str, parameters: Iterable[Any] = ()) -> list[Entry]:
        """A group's entries that match an SQL condition on the view `recorded`, by rank and record id."""
        rows = self.query(
            f"SELECT * FROM recorded WHERE group_id = ? AND ({condition}) ORDER BY rank, record_id, seq",
            [group.id, *parameters],
        )
        return [_entry(row) for row in rows]

    def entries_of(self, wanted: Iterable[tuple[int, int, int]]) -> list[Entry]:
        """The entries with the given (rank, group id, record id), in that order."""
        keys = list(wanted)
        if not keys:
            return []
        listed = ", ".join(f"({rank}, {group_id}, {record_id})" for rank, group_id, record_id in keys)
        rows = self.query(f"SELECT * FROM recorded WHERE (rank, group_id, record_id) IN ({listed})")
        found = {(row["rank"], row["group_id"], row["record_id"]): _entry(row) for row in rows}
        return [found[key] for key in keys if key in found]

    def collective(self, group: Group, seq: int) -> dict[int, Entry]:
        """Per rank, the entry recorded under one sequence number of a group."""
        return _by_rank(self.entries(group, "NOT is_p2p AND seq = ?", [seq]))

    def _load_positions(self) -> None:
        counters = {
            (row["group_id"], row["rank"]): row
            for row in self.query(
                "SELECT group_id, rank, max(last_enqueued) AS enqueued, max(last_started) AS started, "
                "max(last_completed) AS completed FROM chosen "
                # In groups with point-to-point operations, the counters mix their numbers with those of collectives.
                "ANTI JOIN (SELECT DISTINCT group_id FROM recorded_numbers WHERE p2p_seq > 0) USING (group_id) "
                "GROUP BY group_id, rank"
            )
        }
        self.store.execute(MAKE_POSITIONS)
        recorded = {(row["group_id"], row["rank"]): row for row in self.query("SELECT * FROM positions")}
        for group_id, rank in sorted({**counters, **recorded}, key=lambda key: (key[0], key[1])):
            counted: Mapping[str, Any] = counters.get((group_id, rank), {})
            seen: Mapping[str, Any] = recorded.get((group_id, rank), {})
            # A complete record without the group means that the rank never called anything in it.
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
        """Load the oldest unfinished collective of each rank and group. Anything before a finished one is finished."""
        self.store.execute(MAKE_PENDING)
        self.store.execute(MAKE_SAME_NUMBERS)
        oldest = self.query(OLDEST_PENDING)
        for row in oldest:
            self.groups[row["group_id"]].pending[row["rank"]] = _entry(row)
        wanted = sorted({(row["group_id"], row["seq"]) for row in oldest})
        for group_id, seq in wanted:
            self.groups[group_id].at[seq] = {}
        for row in self.query(SAME_NUMBERS):
            together = self.groups[row["group_id"]].at[row["seq"]]
            _take(together, _entry(row))

    def _infer_finished(self) -> None:
        """Infer what dumps of active work leave out: a rank has finished everything before its first entry in a group.

        What it called there is unknown, so it counts only if others are still in it, in an operation that no rank
        finishes before all have entered.
        """
        if not self.only_active:
            return
        for group in self.groups.values():
            needs_all = [seq for seq, by in group.at.items() if any(completes_together(e.op) for e in by.values())]
            for rank, position in group.positions.items():
                first = position.first_recorded
                if first is None and position.enqueued is not None:
                    first = position.enqueued + 1
                if first is not None and self.ranks[rank].only_active:
                    done = max((seq for seq in needs_all if seq < first), default=None)
                    group.positions[rank] = replace(position, last_done_together=done)


def _by_rank(entries: Iterable[Entry]) -> dict[int, Entry]:
    found: dict[int, Entry] = {}
    for entry in entries:
        _take(found, entry)
    return found


def _take(by_rank: dict[int, Entry], entry: Entry) -> None:
    """Add an entry to `by_rank`. A coalesced block shares one number; its closing entry carries no information."""
    if entry.op != "coalesced" or entry.rank not in by_rank:
        by_rank[entry.rank] = entry


def _group(row: dict[str, Any]) -> Group:
    members = None if row["members"] is None else tuple(row["members"])
    return Group(row["group_id"], row["group_key"], row["name"] or "", row["description"] or "", members)


def _entry(row: dict[str, Any]) -> Entry:
    told = {name: row[name] for name in _ENTRY}
    unknown = {name: instead for name, instead in _IF_UNKNOWN.items() if told[name] is None}
    return Entry(**told | unknown, contexts=tuple(json.loads(row["contexts"] or "[]")))


# --- how far ranks got in their groups, and what they are stuck in: tables and queries over the views of `selection`
# positions         the first and last collective of each rank and group, and the last finished ones
# pending           the oldest collective that each rank has not finished
# same_numbers      what every rank recorded under those numbers
# They are tables because several queries need them and each condenses millions of entries. The entry that closes a
# batch of transfers carries the number of the preceding collective.

_COLLECTIVES = """
SELECT * FROM recorded_numbers JOIN rules USING (call) ANTI JOIN batches USING (rank, group_id, record_id)
WHERE NOT is_p2p AND seq IS NOT NULL
"""

MAKE_POSITIONS = f"""
CREATE OR REPLACE TEMP TABLE positions AS
SELECT group_id, rank, min(seq) AS first_seq, max(seq) AS last_seq, max(seq) FILTER (done) AS last_done,
    max(seq) FILTER (done AND together) AS last_done_together
FROM ({_COLLECTIVES}) GROUP BY group_id, rank
"""

# An operation may be marked finished late (Gloo's `retired`): anything before a finished one is finished.
MAKE_PENDING = f"""
CREATE OR REPLACE TEMP TABLE pending AS
SELECT r.group_id, r.rank, min(r.seq) AS seq
FROM ({_COLLECTIVES}) r JOIN positions p ON p.group_id = r.group_id AND p.rank = r.rank
WHERE NOT r.done AND r.seq > coalesce(p.last_done, -1) GROUP BY r.group_id, r.rank
"""

MAKE_SAME_NUMBERS = """
CREATE OR REPLACE TEMP TABLE same_numbers AS
SELECT n.* FROM recorded_numbers n SEMI JOIN pending p ON n.group_id = p.group_id AND n.seq = p.seq
ANTI JOIN batches b ON b.rank = n.rank AND b.group_id = n.group_id AND b.record_id = n.record_id
"""

OLDEST_PENDING = f"""
SELECT e.* FROM ({with_texts("same_numbers")}) e
JOIN pending p ON e.group_id = p.group_id AND e.rank = p.rank AND e.seq = p.seq
WHERE NOT e.is_p2p ORDER BY e.group_id, e.rank, e.op = 'coalesced' DESC, e.record_id
"""

SAME_NUMBERS = f"""
SELECT e.* FROM ({with_texts("same_numbers")}) e WHERE NOT e.is_p2p ORDER BY e.group_id, e.seq, e.rank, e.record_id
"""


# --- where the members' calls under one number differ: the starting point of all call comparisons
# tokens            what identifies each collective: its operation, sizes and call site, as numbers from `rules`
# differences       for each group and number, whether these differ, and the range of ranks with known call sites


def make_differences(store: Store) -> None:
    """Create the view `tokens` and the table `differences` in the store, to compare calls across ranks.

    `tokens` identifies each collective's call. `differences` says for each group and sequence number whether
    operations, sizes, data types or call sites differ.
    """
    store.execute(
        "CREATE OR REPLACE TEMP VIEW tokens AS SELECT group_id, rank, seq, op, sizes, dtypes, "
        "CASE WHEN rooted THEN caller ELSE site END AS place "
        "FROM recorded_numbers JOIN rules USING (call) LEFT JOIN places USING (site) "
        "WHERE NOT is_p2p AND NOT closing AND seq IS NOT NULL"
    )
    store.execute(
        "CREATE OR REPLACE TEMP TABLE differences AS SELECT group_id, seq, min(op) <> max(op) AS ops, "
        "min(sizes) <> max(sizes) AS sizes, min(dtypes) <> max(dtypes) AS dtypes, min(place) <> max(place) AS places, "
        "min(rank) FILTER (place IS NOT NULL) AS first_placed, max(rank) FILTER (place IS NOT NULL) AS last_placed "
        "FROM tokens GROUP BY group_id, seq"
    )
