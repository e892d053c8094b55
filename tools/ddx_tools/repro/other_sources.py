"""What a job called, by sources other than flight records: NCCL's lines, watchdogs' reports, stacks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from ddx_tools.repro.model import WORLD, Call
from ddx_tools.repro.operations import KNOWN, TRANSFERS, op_of
from ddx_tools.store import Store

_NCCL_TYPES = ("int8", "uint8", "int32", "int32", "int64", "int64", "float16", "float32", "float64", "bfloat16")
"""ncclDataType_t (nccl.h, 2.30); unsigned ones as signed."""


def from_nccl(store: Store) -> tuple[dict[int, list[Call]], dict[str, tuple[int, ...]]]:
    """Calls and groups: of each communicator what not all ranks enqueued, or from the first on in which they differ.

    Ranks are those of the largest communicator. Sends and receives are left out: their numbers count for two ranks.
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
    found: dict[str, dict[int, dict[int, Call]]] = defaultdict(lambda: defaultdict(dict))
    for row in store.query("SELECT * FROM nccl_ops WHERE communicator IS NOT NULL ORDER BY source, source_line"):
        group, op = _name(row["communicator"], largest), op_of(row["name"])
        rank = ranks.get((row["host"], row["pid"]))
        if rank is not None and op in KNOWN.difference(TRANSFERS):
            dtype = dict(enumerate(_NCCL_TYPES)).get(row["datatype"], "float32")
            call = Call(op, group, max(1, row["count"] or 1), dtype, where=f"opCount {row['op_count']:x}")
            found[group][row["op_count"]][rank] = call
    calls: dict[int, list[Call]] = {rank: [] for rank in ranks.values()}
    for group, by_number in found.items():
        odd = [number for number, by_rank in by_number.items() if len({call.label for call in by_rank.values()}) > 1]
        for number in sorted(by_number):
            if number > min(last[group]) or (odd and number >= min(odd)):
                for rank, call in by_number[number].items():
                    calls[rank].append(call)
    return calls, {name: tuple(members[at] for at in sorted(members)) for name, members in groups.items()}


def _name(communicator: str, largest: str | None) -> str:
    return WORLD if communicator == largest else f"comm_{communicator}"


def from_watchdogs(store: Store) -> dict[int, list[Call]]:
    """The call that most ranks' watchdogs gave up, as one of the whole job: they do not tell which group it is of."""
    rows = store.query(
        "SELECT DISTINCT rank, op, seq, numel_in AS numel FROM watchdog_reports "
        "WHERE rank IS NOT NULL AND op IS NOT NULL AND seq IS NOT NULL ORDER BY rank"
    )
    calls = [
        (row["rank"], Call(op_of(row["op"]), WORLD, int(row["numel"] or 1), where=f"collective {row['seq']}"))
        for row in rows
    ]
    most = Counter(call for _, call in calls if call.op in KNOWN).most_common(1)
    return {rank: [call] for rank, call in calls if [call] == [each for each, _ in most]}


def in_stacks(store: Store) -> dict[int, str]:
    """By rank: what the main thread waits in at the last look; empty if it is in nothing of the kind."""
    rows = store.query(
        "SELECT rank, arg_max(coalesce(operation, ''), snapshot) AS op, arg_max(activity, snapshot) AS activity "
        "FROM stack_threads WHERE is_main AND role = 'rank' AND rank IS NOT NULL GROUP BY rank ORDER BY rank"
    )
    waits = ("collective", "rendezvous", "p2p")
    return {row["rank"]: op_of(row["op"]) if row["activity"] in waits else "" for row in rows}


def seen(operation: str, rank: int, stacks: Mapping[int, str]) -> Call:
    """What a stack tells: the operation alone. Who sends or receives does so with the next one that does."""
    where = "as its stack shows"
    if operation not in TRANSFERS:
        return Call(operation, WORLD, where=where)
    others = [other for other, op in stacks.items() if op in TRANSFERS]
    others = others if len(others) > 1 else sorted(stacks)
    peer = others[(others.index(rank) + 1) % len(others)]
    transfer = (rank, peer) if operation == "send" else (peer, rank)
    return Call(operation, WORLD, transfer=transfer, where=f"{where}, which does not show with whom")
