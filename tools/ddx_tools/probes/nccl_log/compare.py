"""Finds where the operations of a communicator's ranks diverge: by checksums and, where those differ, one by one.

Ranks whose checksums over 128 opCounts are equal enqueued the same there, so one of them stands for all: they form a
class. Operations are read only if there is more than one class, and only from one rank of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ddx_tools.model.grouping import gathered

MOST_BUCKETS = 8
"""How many differing buckets are read; nearly always the first one decides."""
MOST_CLASSES = 16


class Sums(NamedTuple):
    """What one rank enqueued within a bucket of opCounts: range and checksum."""

    operations: int
    first: int
    last: int
    checksum: int


class OperationKind(NamedTuple):
    """An operation without the fields that always differ between ranks (pointers, streams)."""

    name: str
    elements: int
    datatype: int
    reduction: int
    root: int


Launch = tuple[OperationKind, ...]
"""The sorted operations of one opCount: a single one, or those of a group call."""


@dataclass(frozen=True)
class PartingRange:
    """A range of opCounts in which ranks enqueued different operations, or some have not enqueued all of them yet."""

    number: int
    classes: dict[Sums, list[int]]
    """{checksums: ranks}, the class of the lowest rank first"""

    @property
    def same_range(self) -> bool:
        """Whether all classes cover the same opCounts, so that the operations themselves differ.

        If False, some ranks may only not have enqueued all operations yet.
        """
        return len({(sums.first, sums.last, sums.operations) for sums in self.classes}) == 1


@dataclass(frozen=True)
class OperationParting:
    """The first launch that differs between the ranks that reached it."""

    op_count: int
    launches: dict[int, Launch]
    """The launches by rank."""
    before: int | None
    """The last opCount known to be equal on these ranks."""


def differing(sums: Mapping[int, Mapping[int, Sums]]) -> Iterator[PartingRange]:
    """Yield each range of opCounts in which the ranks enqueued different operations, in order.

    `sums` maps rank to bucket number to the checksums of that rank's operations in the bucket. The number of ranges is
    limited.
    """
    shown = 0
    for number in sorted({number for of_rank in sums.values() for number in of_rank}):
        classes = gathered((sums[rank][number], rank) for rank in sorted(sums) if number in sums[rank])
        if len(classes) > 1:
            yield PartingRange(number, dict(list(classes.items())[:MOST_CLASSES]))
            shown += 1
            if shown >= MOST_BUCKETS:
                return


def parting(bucket: PartingRange, operations: Mapping[int, Mapping[int, Launch]]) -> OperationParting | None:
    """Return the first operation in a range of opCounts that differs between ranks.

    `operations` maps rank to opCount to launch; it needs at least one rank of each class. None if no difference is
    found, or if the operations of fewer than two classes are known.
    """
    known: dict[Sums, Mapping[int, Launch]] = {}
    for sums, ranks in bucket.classes.items():
        holder = next((rank for rank in ranks if _covers(operations.get(rank, {}), sums)), None)
        if holder is not None:
            known[sums] = operations[holder]
    if len(known) < 2:
        return None
    before = None
    for op_count in range(min(sums.first for sums in known), max(sums.last for sums in known) + 1):
        there = {sums: ops[op_count] for sums, ops in known.items() if op_count in ops}
        if len(there) > 1 and not _agree([(ops, op_count == sums.last) for sums, ops in there.items()]):
            launches = {rank: launch for sums, launch in there.items() for rank in bucket.classes[sums]}
            return OperationParting(op_count, launches, before)
        if len(there) == len(known):
            before = op_count
    return None


def _covers(operations: Mapping[int, Launch], sums: Sums) -> bool:
    return sums.first in operations and sums.last in operations


def _agree(launches: Sequence[tuple[Launch, bool]]) -> bool:
    """Whether launches are equal. The last launch in a log may be incomplete: part of a group call then counts as
    equal."""
    whole = {launch for launch, last in launches if not last}
    if len(whole) > 1:
        return False
    largest = next(iter(whole), None) or max((launch for launch, _ in launches), key=len)
    return all(_is_part(launch, largest) if last else launch == largest for launch, last in launches)


def _is_part(small: Launch, large: Launch) -> bool:
    rest = list(large)
    for kind in small:
        if kind not in rest:
            return False
        rest.remove(kind)
    return True


def launches_of(operations: Iterable[tuple[int, OperationKind]]) -> dict[int, Launch]:
    """Map each opCount to its launch: the sorted kinds of operations enqueued with that opCount.

    `operations` are pairs of opCount and operation.
    """
    grouped = gathered((op_count, kind) for op_count, kind in operations)
    return {op_count: tuple(sorted(kinds)) for op_count, kinds in grouped.items()}
