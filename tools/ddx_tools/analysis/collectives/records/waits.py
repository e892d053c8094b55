"""What keeps ranks waiting: for each operation that ranks are in and none finishes, who is not in it, and why.

A rank that got where it is by its own deviation (the minority of a mismatch, a rank with an extra call) waits for no
rank here: its peers followed the program, and they wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field

from ddx_tools.analysis.collectives.records.device_positions import Front, Fronts
from ddx_tools.analysis.collectives.records.quotes import where
from ddx_tools.analysis.collectives.records.records import Entry, Group, Records
from ddx_tools.analysis.collectives.records.transfers import Transfer
from ddx_tools.analysis.collectives.records.usual_waits import SETTLED_S
from ddx_tools.analysis.collectives.wait_solver import Hold


@dataclass(kw_only=True)
class Recorded(Hold):
    """An operation in flight records, the ranks in it, and those that keep them waiting."""

    group: Group
    fronts: dict[int, Front] = field(default_factory=dict)
    """Per waiting rank, the operation that it is in."""
    transfer: Transfer | None = None
    undated: bool = False
    """At least one rank in `lacking` has a record of unknown time."""

    def entries(self) -> list[Entry]:
        """The entries of the waiting ranks, if this is a collective."""
        return [front.entry for front in self.fronts.values() if front.entry is not None]


def find_holds(
    records: Records, fronts: Fronts, deviating: Mapping[int, Set[int]], patience_s: float | None = None
) -> list[Recorded]:
    """Return the operations in which ranks have waited for at least `patience_s` seconds.

    Waits of unknown length are included; if `patience_s` is None, a limit derived from the records applies.
    `deviating`: per group id, the ranks that deviate from the majority.
    """
    patience_s = records.patience_s if patience_s is None else patience_s
    holds: dict[tuple[int, int, str], Recorded] = {}
    others: list[Recorded] = []
    for rank, mine in fronts.of.items():
        for front in mine:
            wait_s = records.wait_s(rank, front.created_ns)
            if wait_s is not None and wait_s < patience_s:
                continue
            if front.entry is None:
                others += _of_transfers(records, fronts, rank, front, wait_s)
                continue
            hold = Recorded(at=where(front.group, front.entry.seq, front.entry.op), group=front.group)
            if rank in deviating.get(front.group.id, ()):
                hold.by_deviation = True
                others.append(hold)
            else:
                hold = holds.setdefault((front.group.id, front.entry.seq, front.entry.op), hold)
            hold.waiting[rank] = wait_s
            hold.fronts[rank] = front
    for hold in _of_unseen(records, fronts):
        key = (hold.group.id, hold.seq or 0, hold.op)
        if key in holds:
            holds[key].waiting.update(hold.waiting)
        else:
            others.append(hold)
    for hold in holds.values():
        _find_absent(records, fronts, hold, deviating.get(hold.group.id, frozenset()))
    return [*holds.values(), *others]


def _of_unseen(records: Records, fronts: Fronts) -> Iterator[Recorded]:
    """Collectives that ranks have called and others lack, for ranks whose current operation left the ring buffer.

    How long they wait is unknown, but a rank that called something a moment ago is still moving.
    """
    callers: dict[tuple[int, int], list[int]] = {}
    for rank, called in fronts.called.items():
        silent_s = records.wait_s(rank, records.ranks[rank].latest_sign_ns)
        if silent_s is not None and silent_s < records.patience_s:
            continue
        for group, seq in called:
            callers.setdefault((group.id, seq), []).append(rank)
    for (group_id, seq), ranks in sorted(callers.items()):
        group = records.groups[group_id]
        entered = {member: group.entered(member, seq) for member in group.ranks() if member in records.ranks}
        lacking = [member for member, came in entered.items() if came is False and not group.is_overtaken(member)]
        unknown = [member for member in group.ranks() if member not in entered] if all(entered.values()) else []
        entry = next(iter(group.at.get(seq, {}).values()), None)
        if lacking or unknown:
            op = entry.op if entry else "a collective"
            hold = Recorded(
                at=where(group, seq, op),
                group=group,
                waiting=dict.fromkeys(ranks),
                lacking=tuple(lacking),
                unknown=tuple(unknown),
            )
            hold.undated = any(records.ranks[rank].taken_ns is None for rank in lacking)
            yield hold


def _find_absent(records: Records, fronts: Fronts, hold: Recorded, deviating: Set[int]) -> None:
    """Sort the members not in it by where they are. The last caller gives the others the least time to enter."""
    last = max(hold.entries(), key=lambda entry: entry.created_ns or 0)
    found: dict[str, list[int]] = {"lacking": [], "behind": [], "elsewhere": [], "unknown": [], "too_early": []}
    for member in hold.group.ranks():
        if member not in hold.waiting:
            where = _where(records, fronts, hold.group, member, last)
            if where is not None and not (where == "elsewhere" and deviating and member not in deviating):
                found[where].append(member)
    if deviating and not any(found.values()):
        # All are in it, but some with another size or another call.
        found["elsewhere"] = [rank for rank in hold.group.at[last.seq] if rank in deviating]
    hold.undated = any(_margin_s(records, member, last) is None for member in found["lacking"])
    for name, ranks in found.items():
        setattr(hold, name, tuple(ranks))


def _where(records: Records, fronts: Fronts, group: Group, member: int, entry: Entry) -> str | None:
    """Where a member is, as seen from ranks that wait in `entry`; None if it does not keep them waiting."""
    if member not in records.ranks:
        return "unknown"
    theirs = group.at[entry.seq].get(member)
    if theirs is not None:
        if theirs.op != entry.op:
            return "elsewhere"
        return None if theirs.done or fronts.is_in(member, group.id, entry.seq) else "behind"
    entered = group.entered(member, entry.seq)
    idle = fronts.status[member] == "idle"
    if entered:
        # The counter includes it and the ring does not: it is later than what its rank is in, or finished long ago.
        return None if idle else "behind"
    if entered is None and records.ranks[member].wrapped and not idle:
        return "behind"
    margin = _margin_s(records, member, entry)
    if group.is_overtaken(member) and fronts.status[member] != "finished_by_peers":
        return "too_early"
    return "too_early" if margin is not None and margin < SETTLED_S else "lacking"


def _margin_s(records: Records, member: int, entry: Entry) -> float | None:
    """Seconds from a waiting rank's call to the dump of an absent member; None if either time is unknown."""
    record = records.ranks[member]
    if entry.created_ns is None:
        return None
    called = records.true_ns(entry.rank, entry.created_ns)
    # An undated dump was taken at or after the last event that it mentions.
    sign_ns = record.latest_sign_ns if record.taken_ns is None else record.taken_ns
    if sign_ns is None:
        return None
    margin = (records.true_ns(member, sign_ns) - called) / 1e9
    return margin if record.taken_ns is not None or margin >= SETTLED_S else None


def _of_transfers(records: Records, fronts: Fronts, rank: int, front: Front, wait_s: float | None) -> list[Recorded]:
    """One hold for each transfer of the front whose other end is missing; a single one if no end is missing."""
    found = []
    for transfer in front.transfers:
        hold = Recorded(
            at=where(front.group, None, transfer.words),
            group=front.group,
            waiting={rank: wait_s},
            fronts={rank: front},
            transfer=transfer,
        )
        peer = transfer.peer
        if peer not in records.ranks:
            hold.unknown = (peer,)
        else:
            ends = fronts.pending[transfer.direction]
            mine = ends[rank].index(transfer)
            theirs = ends.get(peer, [])
            if len(theirs) <= mine:
                seen = fronts.status[peer] != "unseen"
                hold.lacking, hold.behind = ((peer,), ()) if seen else ((), (peer,))
            elif theirs[mine].elements != transfer.elements:
                hold.lacking = (peer,)  # The peer has a different transfer in its place.
            elif not fronts.is_in_transfer(theirs[mine]):
                hold.behind = (peer,)
        found.append(hold)
    held = [hold for hold in found if not hold.is_complete]
    return held or found[:1]
