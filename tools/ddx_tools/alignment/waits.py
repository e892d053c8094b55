"""Who waits in what: operations that are not finished, and the members that never entered them.

A rank whose own deviation put it where it waits (the minority of a mismatch, the rank with an extra call)
waits for nobody here: its peers did what the program says, and it is they who wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from ddx_tools.alignment.comparable import completes_together
from ddx_tools.alignment.records import SETTLED_S, Entry, Group, Records

_NS = 1e9


@dataclass(frozen=True)
class Wait:
    """One rank inside one operation of one group, and what its peers' records say about it."""

    group: Group
    entry: Entry
    wait_s: float | None
    """From the call to the moment of the dump; None if the dump's time is unknown."""
    missing: tuple[int, ...]
    """Members that had not entered it when their record was taken, clearly later than this call."""
    elsewhere: tuple[int, ...]
    """Members that recorded another operation under this number, against a majority if there is one."""
    unknown: tuple[int, ...]
    """Members without a usable record."""
    too_early: tuple[int, ...]
    """Members whose record was taken too early to tell."""
    undated: bool
    """Some member in `missing` has a record of unknown time."""

    @property
    def rank(self) -> int:
        """The rank that waits."""
        return self.entry.rank

    @property
    def blockers(self) -> tuple[int, ...]:
        """The ranks this one waits for, as far as the records tell."""
        return tuple(sorted({*self.missing, *self.elsewhere, *self.unknown}))


def find_waits(records: Records, deviating: Mapping[str, Set[int]]) -> list[Wait]:
    """The oldest unfinished collective of each rank and group, if the rank was in it for more than a moment.

    `deviating`: by group key, the ranks that an earlier mismatch or shift singles out.
    """
    waits = []
    for group in records.groups.values():
        for entries in group.collectives.values():
            pending = next((entry for entry in entries.values() if not entry.done), None)
            if pending is None:
                continue
            wait_s = _wait_s(records, pending)
            if wait_s is None or wait_s >= SETTLED_S:
                waits.append(_wait(records, group, pending, wait_s, deviating.get(group.key, frozenset())))
    return waits


def _wait_s(records: Records, entry: Entry) -> float | None:
    taken = records.ranks[entry.rank].taken_ns
    if taken is None or entry.created_ns is None:
        return None
    return max(0.0, (taken - entry.created_ns) / _NS)


def _wait(records: Records, group: Group, entry: Entry, wait_s: float | None, deviating: Set[int]) -> Wait:
    found: dict[str, list[int]] = {"missing": [], "elsewhere": [], "unknown": [], "too_early": []}
    undated = False
    for member in group.ranks() if entry.rank not in deviating else ():
        if member == entry.rank:
            continue
        where = _where(records, group, member, entry)
        if where == "elsewhere" and deviating and member not in deviating:
            continue
        if where is not None:
            found[where].append(member)
        undated = undated or (where == "missing" and _margin_s(records, member, entry) is None)
    return Wait(
        group,
        entry,
        wait_s,
        missing=tuple(found["missing"]),
        elsewhere=tuple(found["elsewhere"]),
        unknown=tuple(found["unknown"]),
        too_early=tuple(found["too_early"]),
        undated=undated,
    )


def _where(records: Records, group: Group, member: int, entry: Entry) -> str | None:
    """Where a member is as seen from a rank that waits in `entry`; None if it is in the same operation."""
    theirs = group.collectives.get(member, {}).get(entry.seq)
    if theirs is not None:
        return "elsewhere" if theirs.op != entry.op else None
    entered = _entered(records, group, member, entry.seq)
    if entered is None:
        return "unknown"
    if entered:
        return None
    margin = _margin_s(records, member, entry)
    if is_stale(records, group, member) or (margin is not None and margin < SETTLED_S):
        return "too_early"
    return "missing"


def _entered(records: Records, group: Group, member: int, seq: int) -> bool | None:
    """Whether a member entered a collective; a complete record without an entry of the group says no."""
    record = records.ranks.get(member)
    if record is None:
        return None
    entered = group.entered(member, seq)
    if entered is None and not record.wrapped and not record.only_active:
        return False
    return entered


def _margin_s(records: Records, member: int, entry: Entry) -> float | None:
    """Seconds from a waiting rank's call to the dump of an absent member; None if a time is unknown."""
    record = records.ranks[member]
    if entry.created_ns is None:
        return None
    if record.taken_ns is not None:
        return (record.taken_ns - entry.created_ns) / _NS
    # An undated dump was taken at or after the last thing that it mentions.
    latest = record.latest_sign_ns
    if latest is not None and (latest - entry.created_ns) / _NS >= SETTLED_S:
        return (latest - entry.created_ns) / _NS
    return None


def is_stale(records: Records, group: Group, member: int) -> bool:
    """Whether a peer finished a collective that needed this member, and the member's record lacks it.

    Then the record was taken earlier: its absence from anything later proves nothing.
    """
    for rank, entries in group.collectives.items():
        if rank == member:
            continue
        finished = [seq for seq, entry in entries.items() if entry.done and completes_together(entry.op)]
        if finished and _entered(records, group, member, max(finished)) is False:
            return True
    return False
