"""Findings about what ranks enqueued: where their operations diverge, and which ranks are behind.

They are only about enqueueing: NCCL writes no line when an operation starts or ends.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ddx_tools.analysis.collectives import findings as raising
from ddx_tools.analysis.collectives.findings import Aspect, FindingPlace, Where
from ddx_tools.analysis.collectives.odd_ranks import part
from ddx_tools.analysis.collectives.wait_solver import circle_in
from ddx_tools.analysis.nccl.operation_names import described, dtype_name, operation_name
from ddx_tools.analysis.nccl.process_rows import Communicator, NcclLogs, Row
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Evidence, Finding, Severity
from ddx_tools.probes.nccl_log.compare import (
    Launch,
    OperationKind,
    OperationParting,
    PartingRange,
    Sums,
    differing,
    launches_of,
    parting,
)

_MOST_EVIDENCE = 8
_BASIS = "nccl_log"


@dataclass
class Enqueued:
    """The operations that the ranks of one communicator enqueued."""

    communicator: Communicator
    streams: dict[int, Row] = field(default_factory=dict)
    """{rank in the communicator: row of nccl_streams}"""
    sums: dict[int, dict[int, Sums]] = field(default_factory=lambda: defaultdict(dict))
    ops: dict[int, list[Row]] = field(default_factory=lambda: defaultdict(list))
    """{rank: rows of nccl_ops}: the last launch of each rank, and others where ranks differ"""

    @property
    def comparable(self) -> bool:
        """Whether equal opCounts denote the same operation on all ranks.

        False if the communicator has sends or receives: only the ranks that take part count these.
        """
        return not any(row["p2p"] for row in self.streams.values())

    def launches(self) -> dict[int, dict[int, Launch]]:
        """Return the known launches by rank and opCount."""
        return {
            rank: launches_of(
                (
                    row["op_count"],
                    OperationKind(row["name"], row["count"], row["datatype"], row["reduction"], row["root"]),
                )
                for row in rows
            )
            for rank, rows in self.ops.items()
        }


def read_enqueued(case: NcclLogs, store: Store) -> list[Enqueued]:
    """Return the enqueued operations per communicator; communicators that cannot be matched across processes are left
    out."""
    found: dict[str, Enqueued] = {}
    for row in store.query("SELECT * FROM nccl_streams WHERE communicator IS NOT NULL ORDER BY communicator, rank"):
        if (one := case.communicators.get(row["communicator"])) is not None:
            found.setdefault(one.id, Enqueued(one)).streams.setdefault(row["rank"], row)
    for row in store.query("SELECT * FROM nccl_op_sums WHERE communicator IS NOT NULL"):
        if (each := found.get(row["communicator"])) is not None:
            sums = Sums(row["operations"], row["first_op"], row["last_op"], row["checksum"])
            each.sums[row["rank"]][row["bucket"]] = sums
    for row in store.query(
        "SELECT * FROM nccl_ops WHERE communicator IS NOT NULL ORDER BY rank, op_count, source_line"
    ):
        if (each := found.get(row["communicator"])) is not None:
            each.ops[row["rank"]].append(row)
    return list(found.values())


def operation_findings(case: NcclLogs, enqueued: list[Enqueued]) -> Iterator[Finding]:
    """Yield the findings about diverging operations and ranks that are behind, per communicator."""
    for one in enqueued:
        if one.comparable and len(one.streams) > 1:
            # Once operations differ, their numbers no longer correspond, so it is unknown which rank is behind.
            yield from list(_mismatch(case, one)) or list(_behind(case, one))


# --- operations that differ


def _mismatch(case: NcclLogs, one: Enqueued) -> Iterator[Finding]:
    launches = one.launches()
    for bucket in differing(one.sums):
        if (parted := parting(bucket, launches)) is not None:
            yield _parted(case, one, parted)
            return
        if bucket.same_range:
            yield _somewhere(case, one, bucket)
            return


def _parted(case: NcclLogs, one: Enqueued, parted: OperationParting) -> Finding:
    aspect, values = _aspect(parted.launches)
    example = parted.launches[part(values).deviating[0]][0]
    return _differing(
        case,
        one,
        aspect,
        values,
        Where(_BASIS, one.communicator.label, parted.op_count, operation_name(example.name)),
        [op_evidence(row) for rank in values for row in one.ops.get(rank, ()) if row["op_count"] == parted.op_count],
        complete=len(values) == one.communicator.nranks,
        last_common=parted.before,
    )


def _differing(
    case: NcclLogs,
    one: Enqueued,
    aspect: Aspect,
    values: dict[int, str],
    at: Where,
    lines: list[Evidence],
    **facts: Any,
) -> Finding:
    """`values` by rank of the communicator; `lines` from at least one rank of each side."""
    members = one.communicator.members
    deviating = part(values).deviating
    names = case.names(one.communicator, values)
    hosts = {members[rank]["host"] for rank in deviating if rank in members}
    sides = part({names[rank]: value for rank, value in values.items()})
    found = raising.mismatch(aspect, sides, at, FindingPlace(lines[:_MOST_EVIDENCE], [], hosts), **facts)
    found.ranks = case.globally(one.communicator, deviating)
    return found


def _aspect(launches: dict[int, Launch]) -> tuple[Aspect, dict[int, str]]:
    """The most telling aspect that differs, and its value by rank."""
    fields: tuple[tuple[Aspect, tuple[str, ...]], ...] = (
        ("operation", ("name", "reduction")),
        ("root", ("root",)),
        ("shape", ("elements",)),
    )
    for aspect, names in fields:
        if len({tuple(tuple(getattr(kind, name) for name in names) for kind in ops) for ops in launches.values()}) > 1:
            return aspect, {rank: _words(aspect, ops) for rank, ops in launches.items()}
    return "dtype", {rank: _words("dtype", ops) for rank, ops in launches.items()}


def _words(aspect: Aspect, launch: Launch) -> str:
    reduced = len({kind.reduction for kind in launch}) > 1 or launch[0].reduction != 0
    said = {
        "operation": lambda kind: described(kind.name, kind.reduction if reduced else 0),
        "dtype": lambda kind: dtype_name(kind.datatype),
        "root": lambda kind: str(kind.root),
        "shape": lambda kind: str(kind.elements),
    }[aspect]
    return ", ".join(map(said, launch[:4]))


def _somewhere(case: NcclLogs, one: Enqueued, bucket: PartingRange) -> Finding:
    """A finding for differing checksums whose operations are on another host or were not read."""
    first = min(sums.first for sums in bucket.classes)
    last = max(sums.last for sums in bucket.classes)
    values = {rank: f"checksum {sums.checksum:x}" for sums, ranks in bucket.classes.items() for rank in ranks}
    lines = [shown for rank in part(values).deviating for shown in _last_of(one, rank)]
    group = f"launches {first} to {last} of {one.communicator.label}"
    return _differing(case, one, "operation", values, Where(_BASIS, group), lines, between=[first, last])


def op_evidence(row: Row) -> Evidence:
    """Return an enqueued operation as evidence; the quote is its log line without buffer addresses.

    `row` is a row of `nccl_ops`.
    """
    quote = (
        f"{row['name']}: opCount {row['op_count']:x} … count {row['count']} datatype {row['datatype']} "
        f"op {row['reduction']} root {row['root']} comm {row['pointer']}"
    )
    return Evidence(source=row["source"], line=row["source_line"], quote=quote)


def _last_of(one: Enqueued, rank: int) -> list[Evidence]:
    return [op_evidence(row) for row in one.ops.get(rank, [])[-1:]]


# --- ranks that are behind


def _behind(case: NcclLogs, one: Enqueued) -> Iterator[Finding]:
    """Ranks that enqueued less than the others, if all others are at the same launch, as if they waited there.

    In a running job, ranks are at many different launches, or differ only slightly; that is not a finding.
    """
    ended = [row["ended"] or "" for row in one.streams.values()]
    if any(state == "Destroy" for state in ended):
        return
    lasts = {rank: row["last_op"] for rank, row in one.streams.items()}
    silent = _silent(case, one)
    front = max(lasts.values())
    waiting = sorted(rank for rank, last in lasts.items() if last == front)
    behind = sorted([rank for rank, last in lasts.items() if last < front and not one.streams[rank]["cut"]] + silent)
    looked_at = len(lasts) + len(silent)
    tie = 2 * len(waiting) <= looked_at
    if not behind or (tie and (looked_at > 2 * len(waiting) or len({lasts.get(rank) for rank in behind}) > 1)):
        return
    following = min((lasts[rank] for rank in behind if rank in lasts), default=-1) + 1
    there = [row for rank in waiting for row in one.ops.get(rank, ()) if row["op_count"] == following]
    newest = [row for rank in waiting for row in one.ops.get(rank, ()) if row["op_count"] == front]
    operation = operation_name((there or newest)[0]["name"]) if there or newest else None
    members, label = one.communicator.members, one.communicator.label
    aborted = any(state.startswith("Abort") for state in ended)
    names = case.names(one.communicator, [*behind, *waiting])
    found = raising.missing(
        Where(_BASIS, label, following, operation),
        [names[rank] for rank in behind],
        [names[rank] for rank in waiting],
        FindingPlace(
            [shown for rank in behind[:_MOST_EVIDENCE] for shown in _last_of(one, rank)]
            + [op_evidence(row) for row in (there or newest)[:1]],
            hosts={members[rank]["host"] for rank in behind if rank in members},
        ),
        severity=Severity.FAILURE if aborted and not tie else Severity.WARNING,
        simultaneous="unknown",
        last_seq={names[rank]: lasts.get(rank) for rank in behind},
        balance=0 if tie else 1,
        says=f"{case.who(one.communicator, behind).capitalize()} enqueued less than the others in {label}: "
        f"{_reached(lasts, behind)}, the others up to launch {front}. The log only shows enqueueing.",
        aborted=aborted,
        enqueue_only=True,
    )
    found.ranks = case.globally(one.communicator, behind)
    yield found


def _silent(case: NcclLogs, one: Enqueued) -> list[int]:
    """Members that enqueued nothing here, although they log what they enqueue elsewhere."""
    return [
        rank
        for rank, row in one.communicator.members.items()
        if rank not in one.streams and row["completed"] and (row["host"], row["pid"]) in case.logging
    ]


def _reached(lasts: dict[int, int], behind: list[int]) -> str:
    known = [lasts[rank] for rank in behind if rank in lasts]
    if not known:
        return "nothing at all"
    low, high = min(known), max(known)
    return f"up to launch {low}" if low == high else f"up to launches {low} to {high}"


# --- findings about sends and receives: counts that differ between the two ends after the job aborted
# While a job runs, one end is always ahead of the other. So counts are compared only if a process aborted the
# communicator, which torch's watchdog does after a timeout.

_MOST_FINDINGS = 8


def p2p_findings(case: NcclLogs, enqueued: list[Enqueued]) -> list[Finding]:
    """Return a finding for each cycle of ranks that wait for each other, or for each pair whose counts differ."""
    findings: list[Finding] = []
    for one in enqueued:
        aborted = any((row["ended"] or "").startswith("Abort") for row in one.streams.values())
        if one.comparable or not aborted or any(row["gap"] or row["first_op"] for row in one.streams.values()):
            continue
        unmatched = _unmatched(one)
        circle = _circle(one, unmatched)
        if circle:
            findings.append(_circular(case, one, circle))
        else:
            findings += [_lonely(case, one, *each) for each in unmatched[:_MOST_FINDINGS]]
    return findings[:_MOST_FINDINGS]


Lonely = tuple[str, int, int, int]
"""(Send or Recv, the rank with more operations, its peer, how many more)"""


def _unmatched(one: Enqueued) -> list[Lonely]:
    counts = {rank: json.loads(row["peers"]) for rank, row in one.streams.items()}
    found: list[Lonely] = []
    for rank in sorted(counts):
        for peer in sorted(counts):
            sent = counts[rank].get(f"Send {peer}", 0)
            received = counts[peer].get(f"Recv {rank}", 0)
            if sent > received:
                found.append(("Send", rank, peer, sent - received))
            elif received > sent:
                found.append(("Recv", peer, rank, received - sent))
    return found


def _circle(one: Enqueued, unmatched: list[Lonely]) -> list[int]:
    """The cycle of ranks whose last operation is an unmatched one with the next rank in it."""
    towards: dict[int, int] = {}
    for name, rank, peer, _ in unmatched:
        last = one.ops.get(rank, [])[-1:]
        if last and (last[0]["name"], last[0]["root"]) == (name, peer):
            towards[rank] = peer
    return circle_in(towards)


def _circular(case: NcclLogs, one: Enqueued, circle: list[int]) -> Finding:
    last = {rank: one.ops[rank][-1] for rank in circle}
    return raising.finding(
        "p2p.circular_wait",
        Severity.FAILURE,
        case.globally(one.communicator, circle),
        f"{case.who(one.communicator, circle).capitalize()} each enqueued an operation with the next of them that the "
        f"other side did not match, and nothing after it ({one.communicator.label}).",
        Where(_BASIS, one.communicator.label, operation=last[circle[0]]["name"].lower()),
        FindingPlace(_evidence(one, circle)),
        peers={str(rank): row["root"] for rank, row in last.items()},
    )


def _lonely(case: NcclLogs, one: Enqueued, name: str, rank: int, peer: int, more: int) -> Finding:
    other = "receives from" if name == "Send" else "sends to"
    said = "sends to" if name == "Send" else "receives from"
    return raising.finding(
        "p2p.unmatched",
        Severity.FAILURE,
        case.globally(one.communicator, [rank]),
        f"{case.who(one.communicator, [rank]).capitalize()} enqueued {more} more {said} "
        f"{case.who(one.communicator, [peer])} than the peer enqueued {other} it ({one.communicator.label}).",
        Where(_BASIS, one.communicator.label, operation=name.lower()),
        FindingPlace(_evidence(one, [rank, peer])),
        peers={str(rank): peer},
    )


def _evidence(one: Enqueued, ranks: list[int]) -> list[Evidence]:
    return list(_last_ops(one, ranks))[:8]


def _last_ops(one: Enqueued, ranks: list[int]) -> Iterator[Evidence]:
    for rank in ranks:
        if rows := one.ops.get(rank):
            yield op_evidence(rows[-1])
