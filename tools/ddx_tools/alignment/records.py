"""Flight records of all ranks as the analysis reads them: by group and sequence number, one record a rank."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

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
    done: bool
    created_ns: int | None
    is_p2p: bool
    peer: str | None
    user_file: str | None
    user_line: int | None
    user_function: str | None
    site: str | None
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


@dataclass
class Group:
    """One process group and what its members recorded."""

    key: str
    name: str
    description: str
    members: tuple[int, ...] | None
    collectives: dict[int, dict[int, Entry]] = field(default_factory=dict)
    """By rank, then by sequence number."""
    p2p: dict[int, list[Entry]] = field(default_factory=dict)
    """Point-to-point operations by rank, in order."""
    last_enqueued: dict[int, int] = field(default_factory=dict)
    """By rank; from the counters, which outlive the ring buffer."""

    @property
    def label(self) -> str:
        """The group for a person: its description, and its name where that says more."""
        if self.description in ("", "undefined"):
            return f"group {self.name or self.key}"
        return self.description

    def ranks(self) -> tuple[int, ...]:
        """The members, or, where no record lists them, the ranks that recorded something in the group."""
        if self.members is not None:
            return self.members
        return tuple(sorted(self.collectives.keys() | self.p2p.keys() | self.last_enqueued.keys()))

    def entered(self, rank: int, seq: int) -> bool | None:
        """Whether a rank entered the collective `seq`; None if its record cannot tell."""
        if self.last_enqueued.get(rank, -1) >= seq:
            return True
        entries = self.collectives.get(rank)
        if entries and max(entries) >= seq:
            return True
        return False if rank in self.last_enqueued or entries else None


@dataclass
class Records:
    """All ranks' records of one job."""

    ranks: dict[int, RankRecord]
    groups: dict[str, Group]
    world_size: int | None


def load(store: Store) -> Records:
    """The records of a store; dumps whose rank nothing says stay out (the probe names them)."""
    dumps = store.query(
        "SELECT * FROM fr_dumps WHERE rank IS NOT NULL ORDER BY rank, taken_ns NULLS FIRST, with_frames, source"
    )
    chosen = _choose(dumps)
    signs = {
        row["source"]: row["latest"]
        for row in store.query(
            "SELECT source, max(greatest(created_ns, completed_ns)) AS latest FROM collectives GROUP BY source"
        )
    }
    ranks = {}
    for rank, dumps_of_rank in chosen.items():
        base = dumps_of_rank.base
        latest = [signs[dump["source"]] for dump in base if signs.get(dump["source"]) is not None]
        ranks[rank] = RankRecord(
            rank=rank,
            host=base[0]["host"],
            source=base[0]["source"],
            taken_ns=base[0]["taken_ns"],
            latest_sign_ns=max(latest, default=None),
            wrapped=any((dump["first_record"] or 0) > 0 for dump in base),
            only_active=any(dump["only_active"] for dump in base),
            with_frames=any(dump["with_frames"] for dump in (*base, *dumps_of_rank.later)),
        )
    groups, keys = _load_groups(store, chosen)
    _load_entries(store, chosen, groups, keys)
    sizes = [dump["world_size"] for dump in dumps if dump["world_size"]]
    return Records(ranks, groups, max(sizes, default=None))


_Dump = dict[str, Any]


@dataclass(frozen=True)
class _Chosen:
    """The dumps of one rank: of the moment that counts (one for each recorder), and those that only add."""

    base: list[_Dump]
    later: list[_Dump]


def _choose(dumps: list[_Dump]) -> dict[int, _Chosen]:
    """For each rank the dumps to use.

    A live capture asks all ranks at one moment without frames, then some of them again with frames: the first
    look is the simultaneous one. Of dumps that a job left on disk the newest counts, since older ones may
    belong to an earlier attempt.
    """
    by_rank: dict[int, list[_Dump]] = {}
    for dump in dumps:
        by_rank.setdefault(dump["rank"], []).append(dump)
    chosen = {}
    for rank, mine in by_rank.items():
        live = [dump for dump in mine if dump["origin"] == "agent"]
        moment = (live[0] if live else mine[-1])["taken_ns"]
        # Of several encodings of one recorder's moment the last has frames, if any has.
        together = [dump for dump in live or mine if dump["taken_ns"] == moment]
        base = list({dump["backend"]: dump for dump in together}.values())
        chosen[rank] = _Chosen(base, [dump for dump in live if dump["taken_ns"] != moment])
    return chosen


def _load_groups(store: Store, chosen: dict[int, _Chosen]) -> tuple[dict[str, Group], dict[tuple[str, int], str]]:
    """Groups by key, and {(key of a row, rank): key}.

    Ranks whose record lists no members join the group that lists them.
    """
    sources = {dump["source"] for dumps in chosen.values() for dump in dumps.base}
    rows = [row for row in store.query("SELECT * FROM groups WHERE rank IS NOT NULL") if row["source"] in sources]
    groups: dict[str, Group] = {}
    for row in sorted(rows, key=lambda row: row["members"] is None):
        key = row["group_key"]
        if row["members"] is None:
            key = _joined(groups, row) or key
        if key not in groups:
            members = None if row["members"] is None else tuple(row["members"])
            groups[key] = Group(key, row["name"] or "", row["description"] or "", members)
        if row["last_enqueued"] is not None:
            groups[key].last_enqueued[row["rank"]] = row["last_enqueued"]
    keys = {}
    for row in rows:
        keys[row["group_key"], row["rank"]] = (
            row["group_key"] if row["members"] is not None else _joined(groups, row) or row["group_key"]
        )
    return groups, keys


def _joined(groups: dict[str, Group], row: dict[str, Any]) -> str | None:
    """The one group of that name that lists the rank as a member."""
    fitting = [
        group.key
        for group in groups.values()
        if group.members is not None and group.name == row["name"] and row["rank"] in group.members
    ]
    return fitting[0] if len(fitting) == 1 else None


def _load_entries(
    store: Store,
    chosen: dict[int, _Chosen],
    groups: dict[str, Group],
    keys: dict[tuple[str, int], str],
) -> None:
    base_sources = {dump["source"] for dumps in chosen.values() for dump in dumps.base}
    later_sources = {dump["source"] for dumps in chosen.values() for dump in dumps.later}
    added: dict[tuple[int, str, int], Entry] = {}
    entries: list[tuple[str, Entry]] = []
    for row in store.query("SELECT * FROM collectives WHERE rank IS NOT NULL ORDER BY rank, record_id, seq"):
        key = keys.get((row["group_key"], row["rank"]), row["group_key"])
        entry = _entry(row)
        if row["source"] in base_sources:
            entries.append((key, entry))
        elif row["source"] in later_sources:
            before = added.get((entry.rank, key, entry.record_id))
            added[entry.rank, key, entry.record_id] = entry if before is None else _merged(before, entry)
    for key, entry in entries:
        group = groups.setdefault(key, Group(key, key, "", None))
        later = added.get((entry.rank, key, entry.record_id))
        merged = entry if later is None else _merged(entry, later)
        if merged.is_p2p:
            group.p2p.setdefault(merged.rank, []).append(merged)
        elif merged.op != "coalesced" or merged.seq not in group.collectives.get(merged.rank, {}):
            # A coalesced block shares one sequence number, and its closing entry tells nothing of its own.
            group.collectives.setdefault(merged.rank, {})[merged.seq] = merged
    for group in groups.values():
        for rank, by_seq in group.collectives.items():
            _settle(by_seq)
            group.collectives[rank] = dict(sorted(by_seq.items()))


def _merged(entry: Entry, later: Entry) -> Entry:
    """The entry with the call site and the completion that a later look at the same rank adds."""
    if entry.site is None and later.site is not None:
        entry = replace(
            entry,
            user_file=later.user_file,
            user_line=later.user_line,
            user_function=later.user_function,
            site=later.site,
            source=later.source,
        )
    return replace(entry, done=entry.done or later.done)


def _settle(by_seq: dict[int, Entry]) -> None:
    """What lies before a finished operation of the group is finished: the marks lag (Gloo's `retired`)."""
    finished = max((seq for seq, entry in by_seq.items() if entry.done), default=None)
    if finished is None:
        return
    for seq, entry in by_seq.items():
        if seq < finished and not entry.done:
            by_seq[seq] = replace(entry, done=True)


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
        done=bool(row["done"]),
        created_ns=row["created_ns"],
        is_p2p=bool(row["is_p2p"]),
        peer=row["peer"],
        user_file=row["user_file"],
        user_line=row["user_line"],
        user_function=row["user_function"],
        site=row["site"],
        source=row["source"],
    )
