"""Builds a recording from the evidence: flight records, else NCCL's log, else watchdog reports; stacks add to it.

For each rank it holds, in order, the calls that not all members of the group finished. What a source does not record
(roots, tensor values, reductions) is listed in `left_out` and replaced by the simplest choice.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from ddx_tools.analysis.collectives.records.comparable import sizes_to_agree_on
from ddx_tools.analysis.collectives.records.records import Entry, Group, Records
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Diagnosis, SuspectEvent
from ddx_tools.repro.model import NEW_GROUP, WORLD, Program, Recording, ReproCall


def recording_of(store: Store, diagnosis: Diagnosis) -> Recording:
    """Build from a store the calls at which the job stopped, as a program for each rank.

    The calls come from flight records, else from NCCL's logs or watchdog reports, and from stacks. The recording has no
    programs if none of these reports a call.
    """
    suspects = {rank for suspect in diagnosis.suspects for rank in suspect.ranks}
    ended = {r for suspect in diagnosis.suspects if suspect.event is SuspectEvent.ENDED for r in suspect.ranks}
    records = store.derived(Records)
    taken = _FlightRecords(records) if records.ranks else None
    taken = taken if taken and any(taken.calls.values()) else None
    calls, groups = (taken.calls, taken.groups) if taken else from_nccl(store)
    calls = calls if any(calls.values()) else from_watchdogs(store)
    left_out = taken.left_out if taken else ["places and earlier calls, which only flight records have"]
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
        left_out.append(f"ranks {unknown}: their stacks do not show what they wait for")
        groups[WORLD] = tuple(programs)
    left_out.append(
        "roots, reductions and tensor values are not recorded: the script uses the first member, sums and ones"
    )
    return Recording(programs, groups, frozenset(suspects & programs.keys()), left_out)


class _FlightRecords:
    """The calls and groups in flight records, by rank."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.names = _names(records.groups)
        self.groups = {name: records.groups[number].ranks() for number, name in self.names.items()}
        self.calls: dict[int, list[ReproCall]] = {rank: [] for rank in records.ranks}
        self.left_out: list[str] = []
        entries = [entry for group in records.groups.values() for entry in self._open(group)]
        self.left_out.append("all earlier collectives, which every member finished")
        entries.sort(key=lambda each: (each[1].rank, each[1].record_id))
        evened = _evened(entries)
        for at, (group, entry) in enumerate(entries):
            after = entries[at + 1][1] if at + 1 < len(entries) else None
            later = after is not None and after.rank == entry.rank and _went_on(entry, after)
            if call := self._call(group, entry, later=later, elements=evened.get((group.id, entry.seq))):
                self.calls[entry.rank].append(call)

    def _open(self, group: Group) -> Iterable[tuple[Group, Entry]]:
        """The calls that not all members finished, or all calls from the first difference on."""
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
        # If a rank's ring buffer begins later, its earlier calls are unknown, but were finished.
        begins = [position.first_recorded for position in group.positions.values()]
        after = max([after, *(number - 1 for number in begins if number is not None)])
        condition = "NOT is_p2p AND op <> 'coalesced' AND seq > ? AND seq <= ?"
        last = first if moving else max((p.entered or 0 for p in group.positions.values()), default=0)
        found = [(group, entry) for entry in self._records.entries(group, condition, [after, last])]
        return found + self._transfers(group)

    def _transfers(self, group: Group) -> list[tuple[Group, Entry]]:
        wanted = [
            (transfer.rank, transfer.group_id, transfer.record_id)
            for (number, _, _), by_rank in self._records.transfers(only_active=self._records.only_active).items()
            if number == group.id
            for transfers in by_rank.values()
            for transfer in transfers
        ]
        return [(group, entry) for entry in self._records.entries_of(wanted)]

    def _call(self, group: Group, entry: Entry, *, later: bool, elements: int | None) -> ReproCall | None:
        op = op_of(entry.op)
        if op not in KNOWN:
            self._say(f"{op}: the script does not support this operation")
            return None
        place = entry.location()
        where = f"{'transfer' if entry.is_p2p else f'collective {entry.seq}'}{f', {place.short()}' if place else ''}"
        transfer = None
        if entry.is_p2p:
            source, _, target = (entry.peer or "").partition("->")
            transfer = group.ranks()[int(source)], group.ranks()[int(target)]
        sends, receives = splits_of(entry) if op == "all_to_all" else ((), ())
        if op == "all_to_all" and not sends:
            self._say("splits of all_to_all, which this backend does not record: the script splits evenly")
        size = count_of(entry, op, len(group.ranks())) if elements is None else elements
        dtype = self._dtype(entry)
        return ReproCall(op, self.names[group.id], size, dtype, transfer, sends, receives, later, where)

    def _dtype(self, entry: Entry) -> str:
        names = json.loads(entry.input_dtypes or "[]") or json.loads(entry.output_dtypes or "[]") or ["Float"]
        if names[0] not in DTYPES:
            self._say(f"{names[0]}: float32 instead")
        return DTYPES.get(names[0], "float32")

    def _say(self, text: str) -> None:
        if text not in self.left_out:
            self.left_out.append(text)


def _names(groups: Mapping[int, Group]) -> dict[int, str]:
    """A name for each group, usable in a program: its description, with a number if several share it."""
    kinds = {number: re.sub(r"\W+", "_", group.label).strip("_") or "group" for number, group in groups.items()}
    many = Counter(kinds.values())
    found = {}
    for number, group in groups.items():
        kind = kinds[number]
        found[number] = WORLD if kind == "default_pg" else kind if many[kind] == 1 else f"{kind}_{group.name}"
    return found


def _went_on(entry: Entry, after: Entry) -> bool:
    """Whether the rank made its next call before this one finished."""
    if not entry.done:
        return True
    return bool(entry.completed_ns and after.created_ns and after.created_ns < entry.completed_ns)


def _evened(entries: Iterable[tuple[Group, Entry]]) -> dict[tuple[int, int], int]:
    """The common element count of exchanges without recorded splits, whose sizes may legitimately differ per rank."""
    found: dict[tuple[int, int], int] = {}
    for group, entry in entries:
        if op_of(entry.op) == "all_to_all" and not splits_of(entry)[0] and sizes_to_agree_on(entry) is None:
            key = group.id, entry.seq
            found[key] = max(found.get(key, 1), count_of(entry, "all_to_all", len(group.ranks())))
    return found


# --- the job's calls from sources other than flight records: NCCL's log, watchdog reports, stacks

_NCCL_TYPES = ("int8", "uint8", "int32", "int32", "int64", "int64", "float16", "float32", "float64", "bfloat16")
"""ncclDataType_t (nccl.h, 2.30); unsigned types map to signed ones."""


def from_nccl(store: Store) -> tuple[dict[int, list[ReproCall]], dict[str, tuple[int, ...]]]:
    """Return the last calls by rank and the members by group name, according to NCCL's logs.

    Only calls that some rank of a communicator lacks are taken, or all from the first difference on. Ranks are numbered
    as in the largest communicator. Sends and receives are left out: their numbers count per pair of ranks.
    """
    made = store.query("SELECT DISTINCT communicator, host, pid, rank, nranks FROM nccl_ranks ORDER BY nranks DESC")
    largest = made[0]["communicator"] if made else None
    ranks = {(row["host"], row["pid"]): row["rank"] for row in made if row["communicator"] == largest}
    groups: dict[str, dict[int, int]] = defaultdict(dict)
    for row in made:
        if (row["host"], row["pid"]) in ranks:
            groups[_name(row["communicator"], largest)][row["rank"]] = ranks[row["host"], row["pid"]]
    last: dict[str, list[int]] = defaultdict(list)
    for row in store.query("SELECT communicator, last_op FROM nccl_streams WHERE last_op IS NOT NULL"):
        last[_name(row["communicator"], largest)].append(row["last_op"])
    found: dict[str, dict[int, dict[int, ReproCall]]] = defaultdict(lambda: defaultdict(dict))
    for row in store.query("SELECT * FROM nccl_ops WHERE communicator IS NOT NULL ORDER BY source, source_line"):
        group, op = _name(row["communicator"], largest), op_of(row["name"])
        rank = ranks.get((row["host"], row["pid"]))
        if rank is not None and op in KNOWN.difference(TRANSFERS):
            dtype = dict(enumerate(_NCCL_TYPES)).get(row["datatype"], "float32")
            call = ReproCall(op, group, max(1, row["count"] or 1), dtype, where=f"opCount {row['op_count']:x}")
            found[group][row["op_count"]][rank] = call
    calls: dict[int, list[ReproCall]] = {rank: [] for rank in ranks.values()}
    for group, by_number in found.items():
        odd = [number for number, by_rank in by_number.items() if len({call.label for call in by_rank.values()}) > 1]
        for number in sorted(by_number):
            if number > min(last[group]) or (odd and number >= min(odd)):
                for rank, call in by_number[number].items():
                    calls[rank].append(call)
    return calls, {name: tuple(members[at] for at in sorted(members)) for name, members in groups.items()}


def _name(communicator: str, largest: str | None) -> str:
    return WORLD if communicator == largest else f"comm_{communicator}"


def from_watchdogs(store: Store) -> dict[int, list[ReproCall]]:
    """The call that most ranks' watchdogs reported, as a call of the whole job: the reports do not name its group."""
    rows = store.query(
        "SELECT DISTINCT rank, op, seq, numel_in AS numel FROM watchdog_reports "
        "WHERE rank IS NOT NULL AND op IS NOT NULL AND seq IS NOT NULL ORDER BY rank"
    )
    calls = [
        (row["rank"], ReproCall(op_of(row["op"]), WORLD, int(row["numel"] or 1), where=f"collective {row['seq']}"))
        for row in rows
    ]
    most = Counter(call for _, call in calls if call.op in KNOWN).most_common(1)
    return {rank: [call] for rank, call in calls if [call] == [each for each, _ in most]}


def in_stacks(store: Store) -> dict[int, str]:
    """For each rank, the operation that its main thread waits in at the last sample; "" if there is none."""
    rows = store.query(
        "SELECT rank, arg_max(coalesce(operation, ''), snapshot) AS op, arg_max(activity, snapshot) AS activity "
        "FROM stack_threads WHERE is_main AND role = 'rank' AND rank IS NOT NULL GROUP BY rank ORDER BY rank"
    )
    waits = ("collective", "rendezvous", "store_wait", "p2p")
    return {row["rank"]: op_of(row["op"]) if row["activity"] in waits else "" for row in rows}


def seen(operation: str, rank: int, stacks: Mapping[int, str]) -> ReproCall:
    """Return the call that a rank's stack shows it to be in; only the operation is known.

    `stacks` maps rank to operation, to find a peer for a transfer. Each rank in a transfer is paired with the next such
    rank.
    """
    where = "shown by its stack"
    if operation not in TRANSFERS:
        return ReproCall(operation, WORLD, where=where)
    others = [other for other, op in stacks.items() if op in TRANSFERS]
    others = others if len(others) > 1 else sorted(stacks)
    peer = others[(others.index(rank) + 1) % len(others)]
    transfer = (rank, peer) if operation == "send" else (peer, rank)
    return ReproCall(operation, WORLD, transfer=transfer, where=f"{where}, which does not show the peer")


# --- the script's operations and sizes, derived from names and shapes in flight records and stacks

TRANSFERS = ("send", "recv")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
KNOWN = {"all_reduce", "all_gather", "reduce_scatter", *_ROOTED, "all_to_all", "barrier", *TRANSFERS, NEW_GROUP}
UNRECORDED = {*TRANSFERS, NEW_GROUP}
"""Operations that Gloo does not record."""
_NAMES = {
    "allreduce": "all_reduce",
    "gradient_reduction": "all_reduce",
    "all_reduce_barrier": "barrier",
    "alltoall": "all_to_all",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "isend": "send",
    "irecv": "recv",
}
_BY_OUTPUT = ("reduce_scatter", "scatter")
DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
}


def op_of(name: str) -> str:
    """The script's operation for a recorded name and its variants."""
    plain = name.lower().lstrip("_")
    for suffix in ("_coalesced", "_into_tensor", "_tensor", "_single", "_base"):
        plain = plain.removesuffix(suffix)
    return _NAMES.get(plain, plain)


def count_of(entry: Entry, op: str, size: int) -> int:
    """The element count of a call, as in `ReproCall.elements`; `size` is the group's."""
    if op in _BY_OUTPUT:
        return _elements(entry.output_sizes) or max(1, _elements(entry.input_sizes) // size)
    brought = _elements(entry.input_sizes) or _elements(entry.output_sizes)
    return max(1, brought // size) if op == "all_to_all" else max(1, brought)


def splits_of(entry: Entry) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The elements sent to and received from each member; empty if they were not recorded."""
    found = []
    for splits, sizes in ((entry.input_splits, entry.input_sizes), (entry.output_splits, entry.output_sizes)):
        parts, shapes = json.loads(splits or "[]"), json.loads(sizes or "[]")
        if not parts or not shapes:
            return (), ()
        found.append(tuple(int(part) * math.prod(shapes[0][1:]) for part in parts))
    return found[0], found[1]


def _elements(sizes: str | None) -> int:
    return sum(math.prod(shape) for shape in json.loads(sizes or "[]"))
