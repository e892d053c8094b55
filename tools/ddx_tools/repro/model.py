"""The parts of a reproduction: calls, each rank's sequence of calls, and their groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

WORLD, NEW_GROUP = "world", "new_group"


@dataclass(frozen=True)
class ReproCall:
    """One operation of one rank. Rank numbers are the job's, or the script's once it is reduced."""

    op: str
    """An operation that `payloads/repro_script.py` knows: all_reduce, …, send, recv, new_group."""
    group: str
    elements: int = 1
    """The elements of a rank's input; for reduce_scatter and scatter of its output, for all_to_all per member."""
    dtype: str = "float32"
    transfer: tuple[int, int] | None = None
    """For a send or a receive, the sending and the receiving rank."""
    sends: tuple[int, ...] = ()
    """For an all_to_all with recorded splits, the elements sent to each member."""
    receives: tuple[int, ...] = ()
    later: bool = False
    """Whether the program went on before the call finished."""
    where: str = ""
    """Sequence number and place, for the reader."""

    @property
    def label(self) -> tuple[object, ...]:
        """The properties of the call on which all members of its group must agree.

        These are operation, element count and data type, except where they do not apply.
        """
        if self.op == "all_to_all":
            return self.op, self.dtype
        return (self.op,) if self.op in ("barrier", NEW_GROUP) else (self.op, self.elements, self.dtype)


@dataclass(frozen=True)
class Program:
    """The calls of one rank, and what it does after them."""

    calls: tuple[ReproCall, ...] = ()
    end: str = ""
    """stay_away (it makes no further call) | leave (its process exits) | empty: it has finished."""


@dataclass(frozen=True)
class Recording:
    """The recorded end of a job: the calls that not all members finished."""

    programs: Mapping[int, Program]
    groups: Mapping[str, tuple[int, ...]]
    """The members of each group by its name; one group is `world`."""
    suspects: frozenset[int] = frozenset()
    left_out: Sequence[str] = field(default_factory=list)

    def in_turn(self) -> Recording:
        """The recording with every call synchronous, since a device runs the calls in order anyway."""
        programs = {
            rank: replace(program, calls=tuple(replace(call, later=False) for call in program.calls))
            for rank, program in self.programs.items()
        }
        said = "asynchronous calls: they are synchronous here, since the device runs them in order"
        return replace(self, programs=programs, left_out=[*self.left_out, said])

    def of(self, ranks: Sequence[int]) -> Recording:
        """The recording reduced to some ranks. A group of one rank makes no calls."""
        kept = frozenset(ranks)
        groups = {name: tuple(rank for rank in members if rank in kept) for name, members in self.groups.items()}
        groups = {name: members for name, members in groups.items() if len(members) > 1 or name == WORLD}
        programs = {
            rank: replace(
                self.programs[rank],
                calls=tuple(
                    _for_members(call, self.groups[call.group], kept)
                    for call in self.programs[rank].calls
                    if call.group in groups and kept.issuperset(call.transfer or ())
                ),
            )
            for rank in ranks
        }
        return replace(self, programs=programs, groups=groups, suspects=self.suspects & kept)


def _for_members(call: ReproCall, members: Sequence[int], kept: frozenset[int]) -> ReproCall:
    if not call.sends:
        return call
    places = [place for place, rank in enumerate(members) if rank in kept]
    return replace(
        call, sends=tuple(call.sends[at] for at in places), receives=tuple(call.receives[at] for at in places)
    )
