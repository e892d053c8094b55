"""The operation that each rank is really in: of all it has called and not finished, what its device may have reached.

A rank with an asynchronous backend calls ahead. If the records show what started (NCCL with
TORCH_NCCL_ENABLE_TIMING), the rank is in what started; if nothing has, its device never reached its next operation.
If they do not, only the first operation that it called and did not finish is certain: all earlier ones are done, and
later ones may wait behind it. So a later operation by itself blocks no rank. Record ids are compared only within one
rank.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ddx_tools.analysis.collectives.records.quotes import kind_of
from ddx_tools.analysis.collectives.records.rank_records import RankRecord
from ddx_tools.analysis.collectives.records.records import Entry, Group, Records
from ddx_tools.analysis.collectives.records.transfers import Transfer, Transfers
from ddx_tools.analysis.collectives.records.usual_waits import SETTLED_S

Status = Literal["idle", "hidden", "inside", "not_started", "unseen", "finished_by_peers"]


@dataclass(frozen=True)
class Front:
    """An operation that a rank is in: a collective, a transfer, or a batch of transfers."""

    group: Group
    record_id: int
    started: bool
    entry: Entry | None = None
    """The recorded collective; None for transfers."""
    transfers: tuple[Transfer, ...] = ()

    @property
    def created_ns(self) -> int | None:
        """When the operation was called, on the rank's clock."""
        return self.entry.created_ns if self.entry is not None else self.transfers[0].created_ns


@dataclass(frozen=True)
class Fronts:
    """What each rank with a record is in (its front), and its status."""

    of: Mapping[int, tuple[Front, ...]]
    status: Mapping[int, Status]
    """idle: nothing is pending; hidden: nothing seems pending, but the backend does not record sends and receives, and
    the rank may be in one; not_started: its device has started nothing that is pending; unseen: the ring has lost
    what the rank is in; finished_by_peers: peers finished what it has pending."""
    pending: Transfers
    called: Mapping[int, tuple[tuple[Group, int], ...]]
    """For ranks whose front is unseen: the first collective of each group that is certainly unfinished."""

    def is_in(self, rank: int, group_id: int, seq: int) -> bool:
        """Whether a rank is in this collective."""
        return any(
            front.entry is not None and front.group.id == group_id and front.entry.seq == seq
            for front in self.of.get(rank, ())
        )

    def is_in_transfer(self, transfer: Transfer) -> bool:
        """Whether a transfer is one that its rank is in."""
        return any(transfer in front.transfers for front in self.of.get(transfer.rank, ()))


def fronts_of(records: Records) -> Fronts:
    """Determine the operation that each rank's device is in, and the rank's status.

    An operation that a rank has called ahead does not count; see `Fronts`.
    """
    pending = records.transfers(only_active=records.only_active)
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
        if status[rank] == "not_started" and records.ranks[rank].wrapped and _has_lost_one(records, rank):
            status[rank] = "unseen"
    hidden = [rank for rank, its in status.items() if its == "idle" and records.ranks[rank].hides_transfers]
    if len(hidden) > 1 or (hidden and may_be_in_transfer(records, hidden[0])):
        status.update(dict.fromkeys(hidden, "hidden"))
    called = {rank: tuple(_called(records, rank)) for rank, its in status.items() if its == "unseen"}
    return Fronts(of, status, pending, called)


def _has_lost_one(records: Records, rank: int) -> bool:
    """Whether a group's counters show an unfinished collective that the ring no longer holds."""
    for group in records.groups.values():
        position, pending = group.positions.get(rank), group.pending.get(rank)
        if position is not None and position.completed is not None and position.entered is not None:
            first = position.completed + 1
            if first <= position.entered and (pending is None or pending.seq > first):
                return True
    return False


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


def _of_transfers(records: Records, pending: Transfers) -> dict[int, list[Front]]:
    """The first pending transfer in each direction; a whole batch counts as one."""
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
    """Whether a finished operation precedes it; otherwise older pending ones may have left the ring."""
    return record.oldest_done is not None and record.oldest_done < first.record_id


def _has_gap(record: RankRecord, pending: list[Front]) -> bool:
    """Whether a group's counters show unfinished collectives before the first recorded one."""
    positions = (front.group.positions[record.rank] for front in pending if front.entry is not None)
    return any(at.completed is not None and (at.first_recorded or 0) > at.completed + 1 for at in positions)


# --- sends and receives that Gloo does not record, derived from its counters
# `op_id` counts all operations of a group, `collective_seq_id` its collectives: the difference is the number of
# transfers that a rank made. A rank with nothing pending may be in a transfer. Then its peer did not do its part, and
# made fewer (or more) transfers than ranks in the same position of similar groups. If each peer is in a collective of
# that group, where its count is known, and none deviates, no hidden transfer can block the rank. The same holds if
# several peers each made equally many since the last collective that the rank shared with them.

_ENOUGH = 3
"""Among this many peers, at least one involves neither the rank nor the peer that would have skipped a transfer."""


def may_be_in_transfer(records: Records, rank: int) -> bool:
    """Whether a rank may be in a transfer that its backend does not record."""
    counts = _counts(records)
    for group in records.groups.values():
        members = group.ranks()
        if rank in members and any(made for (group_id, *_), made in counts.items() if group_id == group.id):
            peers = [place for place, member in enumerate(members) if member != rank]
            if _alike_since(counts, group, rank):
                continue
            if not all(members[place] in group.pending and _as_usual(records, counts, group, place) for place in peers):
                return True
    return False


def long_silent(records: Records, ranks: Collection[int]) -> list[int]:
    """Those of the given ranks that called nothing for clearly longer than ever before, or whose silence is unknown."""
    calls = {row["rank"]: row for row in records.query(_CALLS)} if ranks else {}

    def is_silent(rank: int) -> bool:
        taken_ns, row = records.ranks[rank].taken_ns, calls.get(rank)
        if taken_ns is None or row is None or row["longest"] is None:
            return True
        return bool(taken_ns - row["last"] >= max(SETTLED_S * 1e9, 2 * row["longest"]))

    return [rank for rank in ranks if is_silent(rank)]


_CALLS = """
SELECT rank, max(created_ns) AS last, max(created_ns - before) AS longest FROM (
    SELECT rank, created_ns, lag(created_ns) OVER (PARTITION BY rank ORDER BY record_id) AS before FROM recorded_numbers
) GROUP BY rank
"""

_Counts = dict[tuple[int, int, int], int]
"""Number of transfers made, by (group, rank, sequence number of the collective being called at that time)."""


def _counts(records: Records) -> _Counts:
    rows = records.query(
        "SELECT DISTINCT group_id, rank, seq, op_id - seq AS made FROM recorded_numbers JOIN ("
        "SELECT group_id, min(last) AS common FROM (SELECT group_id, rank, max(seq) AS last FROM recorded_numbers "
        "GROUP BY group_id, rank) GROUP BY group_id) USING (group_id) WHERE op_id IS NOT NULL AND seq >= common"
    )
    return {(row["group_id"], row["rank"], row["seq"]): row["made"] for row in rows}


def _alike_since(counts: _Counts, group: Group, rank: int) -> bool:
    """Whether all peers made equally many transfers between the rank's last collective and the one they are all in."""
    position = group.positions.get(rank)
    last = None if position is None else position.last_recorded
    peers = [member for member in group.ranks() if member != rank]
    if last is None or len(peers) < _ENOUGH or not group.pending.keys() >= set(peers):
        return False
    made = set()
    for peer in peers:
        before, after = counts.get((group.id, peer, last)), counts.get((group.id, peer, group.pending[peer].seq))
        if before is None or after is None:
            return False
        made.add(after - before)
    return len(made) == 1


def _as_usual(records: Records, counts: _Counts, group: Group, place: int) -> bool:
    """Whether a member, at its last collective, had made as many transfers as all others in its position."""
    rank = group.ranks()[place]
    last = max((seq for group_id, member, seq in counts if (group_id, member) == (group.id, rank)), default=None)
    if last is None:
        return False
    alike = {counts.get((other.id, other.ranks()[place], last)) for other in _others(records, group)} - {None}
    return alike == {counts[group.id, rank, last]}


def _others(records: Records, group: Group) -> Iterable[Group]:
    size = len(group.ranks())
    return (
        other
        for other in records.groups.values()
        if other.id != group.id and kind_of(other) == kind_of(group) and len(other.ranks()) == size
    )
