"""Turns decoded flight records into tables of the evidence store.

Groups, calls and call paths are named by a hash of their content, so that every reader, in any process and order, gives
them the same identity, and rows from many readers can be merged unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from ddx_tools.evidence.schema import as_row
from ddx_tools.knowledge.recorded_calls import RecordedCall
from ddx_tools.model.rank_spans import runs
from ddx_tools.parsers.flight_records.call_sites import call_site, user_path
from ddx_tools.parsers.flight_records.fr_dump import FrDump, GroupStatus
from ddx_tools.parsers.flight_records.fr_entries import EntryColumns, Frame
from ddx_tools.parsers.flight_records.fr_origin import DumpOrigin, GroupMembers
from ddx_tools.probes.flight_recorder.entry_rows import EntryKind, EntryRows

_NOT_RECORDED = GroupStatus(None, None, None)


def identity(*parts: object) -> int:
    """Return a 63-bit hash of the values, the same in every process."""
    # repr, because the parts may contain the separator.
    digest = hashlib.blake2b(repr(parts).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


_MOST_MEMBERS_CACHED = 16_384


def group_key(name: str, description: str, members: tuple[int, ...] | None) -> str:
    """Return the identity of a process group across ranks: its name and members.

    The name by itself is not enough (every rank of a mesh may call its own group `1`), and pg_id is a counter of the
    process. If the members are unknown, name and description must suffice; then `members` is NULL.
    """
    if members is None:
        return f"{name} {description}".strip()
    spans = _known_spans(members) if len(members) <= _MOST_MEMBERS_CACHED else ",".join(runs(members))
    return f"{name}@{spans}"


@lru_cache(256)
def _known_spans(members: tuple[int, ...]) -> str:
    """The members as text: `0-3`, `0,2,4`, `3,1`; group order matters. Cached, because every rank of a job repeats its
    groups.

    The cache is bounded because the contents of dumps are not.
    """
    return ",".join(runs(members))


@dataclass
class RecordTables:
    """The contents of some dumps, ready for the store: entries as columns, everything else as rows."""

    entries: EntryRows = field(default_factory=EntryRows)
    dumps: list[dict[str, Any]] = field(default_factory=list)
    memberships: dict[int, dict[str, Any]] = field(default_factory=dict)
    groups: dict[int, dict[str, Any]] = field(default_factory=dict)
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    sites: dict[int, tuple[Frame, ...]] = field(default_factory=dict)
    """The stack of each call path."""

    def add(self, dump: FrDump, origin: DumpOrigin) -> None:
        """Add the groups and entries of one dump."""
        mine = identity(origin.host, origin.source)
        groups = _groups(dump, origin)
        memberships = self._add_groups(dump, groups, mine)
        self._add_entries(dump.entries, memberships)
        self.dumps.append(_dump_row(dump, origin, mine, groups))

    def batches(self) -> Iterator[tuple[str, Any]]:
        """Yield the tables for `Store.insert`."""
        # Not imported in the decoding processes, which start often.
        from ddx_tools.evidence.schema import arrow_table

        yield from self.entry_batches()
        sites = [{"site": site, **(call_site(frames) or {})} for site, frames in self.sites.items()]
        keyed = (self.groups.values(), self.calls.values(), sites, self.dumps, self.memberships.values())
        for table, rows in zip(("fr_groups", "fr_calls", "fr_sites", "fr_dumps", "fr_memberships"), keyed, strict=True):
            if rows:
                yield table, arrow_table(table, list(rows))

    def entry_batches(self) -> Iterator[tuple[str, Any]]:
        """Yield only the entries, in batches."""
        if len(self.entries):
            yield "fr_entries", self.entries.table()

    def add_all(self, other: RecordTables) -> None:
        """Append the contents of other tables."""
        self.entries.add_all(other.entries)
        self.dumps += other.dumps
        self.memberships |= other.memberships
        self.groups |= other.groups
        self.calls |= other.calls
        self.sites |= other.sites

    def _add_groups(self, dump: FrDump, groups: list[GroupMembers], mine: int) -> list[tuple[int, int | None]]:
        """Add all groups of the rank; return (membership, last completed) for each group name in the entries."""
        keys: dict[tuple[str, str], int] = {}
        for group in groups:
            key = group_key(group.name, group.description, group.ranks)
            number = keys[group.name, group.description] = identity(key)
            if number not in self.groups:
                members = None if group.ranks is None else list(group.ranks)
                row = {"group_id": number, "group_key": key, "name": group.name}
                self.groups[number] = {**row, "description": group.description, "members": members}
        found: list[tuple[int, int | None]] = []
        named = set()
        for named_group in dump.entries.groups:
            group_id = keys[named_group.name, named_group.description]
            status = dump.status.get(named_group.pg_id, _NOT_RECORDED)
            found.append((self._membership(mine, group_id, named_group.pg_id, status), status.last_completed))
            named.add(group_id)
        for group_id in keys.values():
            if group_id not in named:
                self._membership(mine, group_id, None, _NOT_RECORDED)
        return found

    def _membership(self, mine: int, group_id: int, pg_id: str | None, status: GroupStatus) -> int:
        number = identity(mine, group_id, pg_id)
        row = {"membership": number, "dump": mine, "group_id": group_id, "pg_id": pg_id, **asdict(status)}
        # Entries can name one group in two ways, for example with two descriptions.
        self.memberships.setdefault(number, row)
        return number

    def _add_entries(self, columns: EntryColumns, memberships: list[tuple[int, int | None]]) -> None:
        calls = [self._call(call) for call in columns.calls]
        mixed = _groups_with_p2p(columns)
        kinds = []
        for kind in columns.kinds:
            membership, last_completed = memberships[kind.group]
            progress = columns.progresses[kind.progress]
            # The counter counts collectives, unless the group mixes them with transfers.
            counted = not columns.calls[kind.call].is_p2p and kind.group not in mixed
            finished = progress.has_finished(columns.calls[kind.call].backend)
            last = last_completed if counted else None
            kinds.append(EntryKind(membership, calls[kind.call], progress.state, finished, last, progress.retired))
        self.entries.add(columns, kinds, [self._site(frames) for frames in columns.sites])

    def _call(self, call: RecordedCall) -> int:
        row = _call_row(call)
        self.calls.setdefault(row["call"], row)
        return int(row["call"])

    def _site(self, frames: tuple[Frame, ...]) -> int | None:
        site = _site_of(frames)
        if site is not None:
            self.sites.setdefault(site, frames)
        return site


# Every rank of a job repeats the same calls and call paths.


@lru_cache(16_384)
def _call_row(call: RecordedCall) -> dict[str, Any]:
    row = asdict(call)
    return {"call": identity(*row.values()), **row}


@lru_cache(16_384)
def _site_of(frames: tuple[Frame, ...]) -> int | None:
    path = user_path(frames)
    return None if path is None else identity(path)


def _groups_with_p2p(columns: EntryColumns) -> set[int]:
    """The groups whose `pg_status` also counts point-to-point operations and so mixes two kinds of numbers."""
    numbers = columns.numbers["p2p_seq"]
    if max(numbers, default=0) <= 0:
        return set()
    numbered = {kind for kind, number in zip(columns.kind, numbers, strict=True) if number > 0}
    return {columns.kinds[kind].group for kind in numbered}


def _dump_row(dump: FrDump, origin: DumpOrigin, mine: int, groups: list[GroupMembers]) -> dict[str, Any]:
    first, last = dump.entries.record_range()
    sizes = (len(group.ranks) for group in groups if group.description == "default_pg" and group.ranks)
    return as_row(
        "fr_dumps",
        origin,
        dump,
        dump=mine,
        version=dump.version or None,
        library=dump.library or None,
        latest_ns=dump.entries.latest_ns(),
        last_call_ns=dump.entries.last_call_ns(),
        entries=len(dump.entries),
        first_record=first,
        last_record=last,
        world_size=origin.world_size or next(sizes, None),
    )


def _groups(dump: FrDump, origin: DumpOrigin) -> list[GroupMembers]:
    """The rank's groups, each once: from the header, else from `pg_config`, else from the entries."""
    found: dict[tuple[str, str], GroupMembers] = {(group.name, group.description): group for group in origin.groups}
    listed = {config.name: config for config in dump.config}
    named = {(group.name, group.description) for group in dump.entries.groups}
    for name, description in sorted(named):
        ranks = listed[name].ranks if name in listed else _gloo_default(dump, description)
        if (name, description) not in found:
            found[name, description] = GroupMembers(name, description, ranks)
    for config in dump.config:
        if config.ranks and (config.name, config.description) not in found and config.name:
            found[config.name, config.description] = GroupMembers(config.name, config.description, config.ranks)
    return list(found.values())


def _gloo_default(dump: FrDump, description: str) -> tuple[int, ...] | None:
    """The members of Gloo's default group.

    Gloo's `pg_config` holds one unnamed group, the last one created, and lists ranks only if that is the default group.
    """
    if description == "default_pg" and len(dump.config) == 1 and dump.config[0].name == "":
        return dump.config[0].ranks
    return None
