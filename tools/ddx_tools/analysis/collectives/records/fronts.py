"""What each rank is really in: of all that it has called and not finished, what its device can have come to.

A rank with an asynchronous backend calls ahead. Where the records tell what started (NCCL with
TORCH_NCCL_ENABLE_TIMING), it is in what started; if nothing has, its device never came to its next operation. Where
they do not, only the first thing that it called and did not finish is sure: all before it is done, and what comes
after it may wait behind it. So a later operation holds nobody up by itself. Record ids are compared within one rank
only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ddx_tools.analysis.collectives.records.hidden_transfers import may_be_in_transfer
from ddx_tools.analysis.collectives.records.rank_records import RankRecord
from ddx_tools.analysis.collectives.records.records import Entry, Group, Records
from ddx_tools.analysis.collectives.records.transfers import Transfer, pending_transfers

Status = Literal["idle", "hidden", "inside", "not_started", "unseen", "finished_by_peers"]


@dataclass(frozen=True)
class Front:
    """One operation that a rank is in: a collective, a transfer, or a batch of transfers."""

    group: Group
    record_id: int
    started: bool
    entry: Entry | None = None
    """The collective."""
    transfers: tuple[Transfer, ...] = ()

    @property
    def created_ns(self) -> int | None:
        """When it was called, by the rank's clock."""
        return self.entry.created_ns if self.entry is not None else self.transfers[0].created_ns


@dataclass(frozen=True)
class Fronts:
    """The fronts of all ranks that left a record."""

    of: Mapping[int, tuple[Front, ...]]
    status: Mapping[int, Status]
    """idle: nothing is pending; hidden: so it seems, but the backend does not record sends and receives, and it may
    be in one; not_started: its device came to nothing that is pending; unseen: the ring has lost what
    it is in; finished_by_peers: peers finished what it has pending."""
    pending: Mapping[tuple[int, int, int], Mapping[int, list[Transfer]]]
    """Pending transfers: {(group, source, target): {rank: in order}}."""
    called: Mapping[int, tuple[tuple[Group, int], ...]]
    """Of ranks whose front is unseen: the first collective of each group that is surely not finished."""

    def is_in(self, rank: int, group_id: int, seq: int) -> bool:
        """Whether a rank's front is this collective."""
        return any(
            front.entry is not None and front.group.id == group_id and front.entry.seq == seq
            for front in self.of.get(rank, ())
        )

    def is_in_transfer(self, transfer: Transfer) -> bool:
        """Whether a transfer is at its rank's front."""
        return any(transfer in front.transfers for front in self.of.get(transfer.rank, ()))


def fronts_of(records: Records) -> Fronts:
    """The fronts of all ranks."""
    pending = pending_transfers(
        records.store,
        {group.id: group.members for group in records.groups.values()},
        only_active=records.only_active,
    )
    heads: dict[int, list[Front]] = {rank: [] for rank in records.ranks}
    for group in records.groups.values():
        for rank, entry in group.pending.items():
            heads[rank].append(Front(group, entry.record_id, entry.state == "started", entry))
    for rank, fronts in _of_transfers(records, pending).items():
        heads[rank] += fronts
    of: dict[int, tuple[Front, ...]] = {}
    status: dict[int, Status] = {}
    for rank, mine in heads.items():
        mine.sort(key=lambda front: front.record_id)
        status[rank], of[rank] = _front(records.ranks[rank], mine, starts_seen=records.starts_seen)
    hidden = [rank for rank, its in status.items() if its == "idle" and records.ranks[rank].hides_transfers]
    if len(hidden) > 1 or (hidden and may_be_in_transfer(records, hidden[0])):
        status.update(dict.fromkeys(hidden, "hidden"))
    called = {rank: tuple(_called(records, rank)) for rank, its in status.items() if its == "unseen"}
    return Fronts(of, status, pending, called)


def _called(records: Records, rank: int) -> Iterator[tuple[Group, int]]:
    for group in records.groups.values():
        position = group.positions.get(rank)
        if position is None:
            continue
        entry = group.pending.get(rank)
        if position.completed is not None and position.entered is not None:
            if position.completed < position.entered:
                yield group, position.completed + 1
        elif entry is not None:
            yield group, entry.seq


def _of_transfers(
    records: Records, pending: Mapping[tuple[int, int, int], Mapping[int, list[Transfer]]]
) -> dict[int, list[Front]]:
    """The first pending transfer of each direction, and whole batches as one."""
    heads: dict[int, list[Front]] = {}
    batches: dict[tuple[int, int, int], list[Transfer]] = {}
    for (group_id, *_), by_rank in pending.items():
        group = records.groups[group_id]
        for rank, mine in by_rank.items():
            if mine[0].batch is None:
                heads.setdefault(rank, []).append(Front(group, mine[0].record_id, mine[0].started, None, (mine[0],)))
            for each in mine:
                if each.batch is not None:
                    batches.setdefault((rank, group_id, each.batch), []).append(each)
    for (rank, group_id, _), parts in batches.items():
        parts.sort(key=lambda each: each.record_id)
        front = Front(records.groups[group_id], parts[0].record_id, parts[0].started, None, tuple(parts))
        heads.setdefault(rank, []).append(front)
    return heads


def _front(record: RankRecord, pending: list[Front], *, starts_seen: bool) -> tuple[Status, tuple[Front, ...]]:
    if not pending:
        return "idle", ()
    if any(f.entry is not None and f.entry.seq <= f.group.finished_by_peers(record.rank) for f in pending):
        return "finished_by_peers", ()
    if starts_seen and (started := tuple(front for front in pending if front.started)):
        return "inside", started
    if record.wrapped and (_has_gap(record, pending) if record.only_active else not _is_seen(record, pending[0])):
        return "unseen", ()
    return ("not_started", ()) if starts_seen else ("inside", tuple(pending[:1]))


def _is_seen(record: RankRecord, first: Front) -> bool:
    """Whether something finished stands before it: else older pending ones may have left the ring."""
    return record.oldest_done is not None and record.oldest_done < first.record_id


def _has_gap(record: RankRecord, pending: list[Front]) -> bool:
    """Whether the counters of a group know of unfinished collectives before the first that is recorded."""
    positions = (front.group.positions[record.rank] for front in pending if front.entry is not None)
    return any(at.completed is not None and (at.first_recorded or 0) > at.completed + 1 for at in positions)
