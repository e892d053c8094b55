"""Comparison of what ranks finished per communicator, from the files of NCCL Inspector: who is behind its peers.

A file grows only while its process finishes operations, and nothing says when it was copied. So a rank that is behind
proves nothing by itself: its file may have been copied earlier, or the job may have ended. A communicator is known to
make no progress if members went on in other communicators for long after its last operation, each by its own clock.
Clocks of different hosts are never compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ddx_tools.analysis.nccl.operation_names import operation_name
from ddx_tools.analysis.nccl.process_rows import Row
from ddx_tools.analysis.nccl.seats import Seat, global_ranks
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import rank_list
from ddx_tools.model.grouping import gathered

BASIS = "nccl_inspector"
_STANDS_S = 5.0
"""A communicator makes no progress if nothing finished in it for this long, and for several of its longest pauses."""
_PAUSES = 3
_FINISHED_ALONE = frozenset({"Broadcast", "Reduce"})
"""A rank can finish several of these before its peers entered them; of all others at most one."""


@dataclass(frozen=True)
class InspectedRank:
    """A member of a communicator, according to its process' file."""

    rows: tuple[Row, ...]
    """One per operation."""

    @cached_property
    def finished(self) -> dict[str, int]:
        """Map each operation to the highest sequence number of it that the rank finished in the communicator."""
        return {row["operation"]: row["last_sn"] for row in self.rows}

    @property
    def compared(self) -> list[str]:
        """Return the operations whose last finished number is certain, so that ranks can be compared by it.

        These are all operations if NCCL Inspector writes every one. If it writes only the last one of each interval, it
        is just the operation of the rank's last line.
        """
        return [row["operation"] for row in self.rows if row["is_last"] or row["writes_all"]]

    @property
    def last_row(self) -> Row:
        """The row of its last operation in the communicator."""
        return next(row for row in self.rows if row["is_last"])

    def row_of(self, operation: str) -> Row:
        """The row of one of its operations; of the last one if it finished none of these."""
        return next((row for row in self.rows if row["operation"] == operation), self.last_row)

    @property
    def silent_s(self) -> float:
        """How long its process went on in other communicators after its last operation in this one, in seconds."""
        return float(self.last_row["ends_s"] - self.last_row["last_s"])


@dataclass
class InspectedCommunicator:
    """A communicator, with the members whose files were read."""

    hash: str
    nranks: int
    members: dict[int, InspectedRank] = field(default_factory=dict)
    seats: dict[int, Seat] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The communicator's name in findings."""
        return f"communicator {self.hash} of {self.nranks} ranks"

    @cached_property
    def most(self) -> dict[str, int]:
        """The highest number per operation that any member finished."""
        found: dict[str, int] = {}
        for member in self.members.values():
            for operation, number in member.finished.items():
                found[operation] = max(number, found.get(operation, number))
        return found

    def lacks(self, rank: int) -> dict[str, int]:
        """How many operations of each kind a member has not finished, and a peer has."""
        member = self.members[rank]
        found = {name: self.most[name] - member.finished[name] for name in member.compared}
        return {name: many for name, many in found.items() if many > 0}

    @cached_property
    def behind(self) -> list[int]:
        """Return the members, as ranks in the communicator, that have not finished what all others have.

        Empty unless the files of all members were read, the late ones are fewer than half, and they lack the same
        operations.
        """
        lacking = {rank: lacks for rank in sorted(self.members) if (lacks := self.lacks(rank))}
        same = len({tuple(sorted(lacks.items())) for lacks in lacking.values()}) == 1
        return list(lacking) if same and len(self.members) == self.nranks > 2 * len(lacking) else []

    @cached_property
    def operation(self) -> str:
        """The operation that the ranks behind have not finished."""
        return min(self.lacks(self.behind[0]))

    @cached_property
    def limit_s(self) -> float | None:
        """Return after how many seconds without a finished operation the communicator counts as stuck.

        It is derived from the longest pause between lines of its members; None if no such pause is known.
        """
        pauses = [member.last_row["longest_gap_s"] for member in self.members.values()]
        known = [pause for pause in pauses if pause is not None]
        return max(_STANDS_S, _PAUSES * max(known)) if known else None

    @cached_property
    def goes_on(self) -> list[int]:
        """Return the members whose process kept finishing operations of other communicators.

        They did so for at least `limit_s` seconds after their last operation in this one. If there are any, this
        communicator makes no progress.
        """
        if self.limit_s is None:
            return []
        return [rank for rank, member in self.members.items() if member.silent_s >= self.limit_s]

    def left(self, rank: int) -> bool:
        """Whether the peers went on without this member, so that it does not hold them up.

        True if they finished more than one operation that it has not. Broadcast and Reduce do not count, since a rank
        can finish them alone.
        """
        return sum(many for name, many in self.lacks(rank).items() if name not in _FINISHED_ALONE) > 1


@dataclass(frozen=True)
class FinishedByRanks:
    """What all files of NCCL Inspector show together."""

    communicators: tuple[InspectedCommunicator, ...]
    ranks: Mapping[Seat, int]
    """Known global ranks per process."""

    @cached_property
    def lagging(self) -> list[InspectedCommunicator]:
        """Return the communicators in which a few ranks may hold up the others.

        One is left out if a late rank kept finishing operations elsewhere, or if its peers went on without it in any
        communicator.
        """
        left = {seat for one in self.communicators for rank, seat in one.seats.items() if one.left(rank)}
        found = []
        for one in self.communicators:
            late = set(one.behind)
            if late and not late & set(one.goes_on) and left.isdisjoint(one.seats[rank] for rank in late):
                found.append(one)
        return found

    def ranks_of(self, one: InspectedCommunicator, members: Sequence[int]) -> list[int]:
        """Convert ranks in a communicator to sorted global ranks; empty unless all are known."""
        found = [self.ranks.get(one.seats[rank]) for rank in members]
        return sorted(rank for rank in found if rank is not None) if None not in found else []

    def sentence(self, one: InspectedCommunicator) -> str:
        """What the ranks behind have not finished, in words."""
        late, name = one.behind, operation_name(one.operation)
        named = ", ".join(f"process {one.seats[rank][1]} on {one.seats[rank][0]}" for rank in late[:4])
        last, most = one.members[late[0]].finished[one.operation], one.most[one.operation]
        who = rank_list(self.ranks_of(one, late)).capitalize()
        return (
            f"{who} ({named}) finished {name} {last} of {one.label} and no later one; "
            f"the other {one.nranks - len(late)} finished {name} {most}"
        )


def finished_by_ranks(store: Store) -> FinishedByRanks:
    """Read what the files of NCCL Inspector in a store show; empty if there are none."""
    rows = store.query("SELECT * FROM nccl_finished ORDER BY communicator, rank, source, operation")
    found: list[InspectedCommunicator] = []
    for (name, nranks), together in gathered(((row["communicator"], row["nranks"]), row) for row in rows).items():
        one = InspectedCommunicator(name, nranks)
        for rank, own in gathered((row["rank"], row) for row in together).items():
            if len({row["source"] for row in own}) == 1:  # of copies, nothing says which is the later one
                one.members[rank] = InspectedRank(tuple(own))
                one.seats[rank] = (own[0]["host"], own[0]["pid"], -1)
        if len(set(one.seats.values())) == len(one.seats):  # a process with several GPUs has no rank of its own
            found.append(one)
    return FinishedByRanks(tuple(found), global_ranks(store, found))
