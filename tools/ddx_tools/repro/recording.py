"""Takes a recording out of the evidence: from flight records, else NCCL's lines, else watchdogs; stacks add to it.

Of each rank the calls count that not all members of the group finished, in the order in which it made them. What a
source does not tell (roots, tensors' values, reductions) is said in `left_out`, and taken in the simplest way.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from ddx_tools.analysis.collectives.records.comparable import sizes_to_agree_on
from ddx_tools.analysis.collectives.records.records import Entry, Group, Records
from ddx_tools.analysis.collectives.records.transfers import pending_transfers
from ddx_tools.model import Diagnosis, SuspectEvent
from ddx_tools.repro.model import WORLD, Call, Program, Recording
from ddx_tools.repro.operations import DTYPES, KNOWN, UNRECORDED, count_of, op_of, splits_of
from ddx_tools.repro.other_sources import from_nccl, from_watchdogs, in_stacks, seen
from ddx_tools.store import Store


def recording_of(store: Store, diagnosis: Diagnosis) -> Recording:
    """The recording; without programs if no source tells of a call."""
    suspects = {rank for suspect in diagnosis.suspects for rank in suspect.ranks}
    ended = {r for suspect in diagnosis.suspects if suspect.event is SuspectEvent.ENDED for r in suspect.ranks}
    records = store.derived(Records)
    taken = _FlightRecords(records) if records.ranks else None
    taken = taken if taken and any(taken.calls.values()) else None
    calls, groups = (taken.calls, taken.groups) if taken else from_nccl(store)
    calls = calls if any(calls.values()) else from_watchdogs(store)
    left_out = taken.left_out if taken else ["places and earlier calls: no flight record tells them"]
    stacks = in_stacks(store)
    ranks = {*calls, *stacks, *(rank for members in groups.values() for rank in members)}
    ranks |= set(range(records.world_size or 0)) if len(ranks) < 2 else set()
    groups[WORLD] = tuple(sorted(ranks))
    open_calls = {rank for rank, mine in calls.items() if mine}
    programs: dict[int, Program] = {}
    unknown = []
    for rank in groups[WORLD]:
        mine, end = calls.get(rank, []), "" if rank in open_calls else "stay_away"
        operation = stacks.get(rank)
        told = operation in UNRECORDED if taken else operation in KNOWN
        if end and rank in ended:
            end = "leave"
        elif end and told and operation:
            mine, end = [seen(operation, rank, stacks)], ""
        elif end and not taken and operation:
            unknown.append(rank)
            continue
        programs[rank] = Program(tuple(mine), end)
    if unknown:
        left_out.append(f"ranks {unknown}: their stacks do not tell what they wait for")
        groups[WORLD] = tuple(programs)
    left_out.append("roots, reductions and values of tensors, which nothing records: the first member, sums, ones")
    return Recording(programs, groups, frozenset(suspects & programs.keys()), left_out)


class _FlightRecords:
    """Calls and groups of flight records, by rank."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.names = _names(records.groups)
        self.groups = {name: records.groups[number].ranks() for number, name in self.names.items()}
        self.calls: dict[int, list[Call]] = {rank: [] for rank in records.ranks}
        self.left_out: list[str] = []
        entries = [entry for group in records.groups.values() for entry in self._open(group)]
        self.left_out.append("all collectives before these: every member finished them")
        entries.sort(key=lambda each: (each[1].rank, each[1].record_id))
        evened = _evened(entries)
        for at, (group, entry) in enumerate(entries):
            after = entries[at + 1][1] if at + 1 < len(entries) else None
            later = after is not None and after.rank == entry.rank and _went_on(entry, after)
            if call := self._call(group, entry, later=later, elements=evened.get((group.id, entry.seq))):
                self.calls[entry.rank].append(call)

    def _open(self, group: Group) -> Iterable[tuple[Group, Entry]]:
        """Calls that not all members finished, or from the first one on in which they differ."""
        done = [
            max(position.last_done or -1, position.completed or -1)
            for rank, position in group.positions.items()
            if rank in self._records.ranks
        ]
        first = self._records.query(
            "SELECT min(seq) AS seq FROM differences WHERE group_id = ? AND (ops OR sizes OR dtypes)", [group.id]
        )[0]["seq"]
        moving = first is not None and not group.pending
        after = min([*done, first - 1] if first is not None else done, default=-1)
        # Where the ring of a rank begins later, what it called before is not known, and was finished.
        after = max(
            [
                after,
                *(
                    position.first_recorded - 1
                    for position in group.positions.values()
                    if position.first_recorded is not None
                ),
            ]
        )
        condition = "NOT is_p2p AND op <> 'coalesced' AND seq > ? AND seq <= ?"
        last = first if moving else max((p.entered or 0 for p in group.positions.values()), default=0)
        found = [(group, entry) for entry in self._records.entries(group, condition, [after, last])]
        return found + self._transfers(group)

    def _transfers(self, group: Group) -> list[tuple[Group, Entry]]:
        members = {each.id: each.members for each in self._records.groups.values()}
        ends = pending_transfers(self._records.store, members, only_active=self._records.only_active)
        wanted = [
            (transfer.rank, transfer.group_id, transfer.record_id)
            for (number, _, _), by_rank in ends.items()
            if number == group.id
            for transfers in by_rank.values()
            for transfer in transfers
        ]
        return [(group, entry) for entry in self._records.entries_of(wanted)]

    def _call(self, group: Group, entry: Entry, *, later: bool, elements: int | None) -> Call | None:
        op = op_of(entry.op)
        if op not in KNOWN:
            self._say(f"{op}: the script has no such operation")
            return None
        place = entry.location()
        where = f"{'transfer' if entry.is_p2p else f'collective {entry.seq}'}{f', {place.short()}' if place else ''}"
        transfer = None
        if entry.is_p2p:
            source, _, target = (entry.peer or "").partition("->")
            transfer = group.ranks()[int(source)], group.ranks()[int(target)]
        sends, receives = splits_of(entry) if op == "all_to_all" else ((), ())
        if op == "all_to_all" and not sends:
            self._say("splits of all_to_all, which this backend does not record: even ones")
        size = count_of(entry, op, len(group.ranks())) if elements is None else elements
        dtype = self._dtype(entry)
        return Call(op, self.names[group.id], size, dtype, transfer, sends, receives, later, where)

    def _dtype(self, entry: Entry) -> str:
        names = json.loads(entry.input_dtypes or "[]") or json.loads(entry.output_dtypes or "[]") or ["Float"]
        if names[0] not in DTYPES:
            self._say(f"{names[0]}: float32 instead")
        return DTYPES.get(names[0], "float32")

    def _say(self, text: str) -> None:
        if text not in self.left_out:
            self.left_out.append(text)


def _names(groups: Mapping[int, Group]) -> dict[int, str]:
    """A name for each group as one can write it in a program: its description, numbered where several have it."""
    kinds = {number: re.sub(r"\W+", "_", group.label).strip("_") or "group" for number, group in groups.items()}
    many = Counter(kinds.values())
    found = {}
    for number, group in groups.items():
        kind = kinds[number]
        found[number] = WORLD if kind == "default_pg" else kind if many[kind] == 1 else f"{kind}_{group.name}"
    return found


def _went_on(entry: Entry, after: Entry) -> bool:
    """Whether the rank made its next call before this one was finished."""
    if not entry.done:
        return True
    return bool(entry.completed_ns and after.created_ns and after.created_ns < entry.completed_ns)


def _evened(entries: Iterable[tuple[Group, Entry]]) -> dict[tuple[int, int], int]:
    """Of exchanges without splits, whose sizes differ by rank with right: as many elements for everybody."""
    found: dict[tuple[int, int], int] = {}
    for group, entry in entries:
        if op_of(entry.op) == "all_to_all" and not splits_of(entry)[0] and sizes_to_agree_on(entry) is None:
            key = group.id, entry.seq
            found[key] = max(found.get(key, 1), count_of(entry, "all_to_all", len(group.ranks())))
    return found
