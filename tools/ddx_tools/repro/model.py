"""What a reproduction is made of: calls, what each rank calls in order, and the groups in which it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

WORLD, NEW_GROUP = "world", "new_group"


@dataclass(frozen=True)
class ReproCall:
    """One operation of one rank. Ranks are those of the job, or of the script once it is made smaller."""

    op: str
    """As `payloads/repro_script.py` plays it: all_reduce, …, send, recv, new_group."""
    group: str
    elements: int = 1
    """What a rank brings: of a reduce_scatter and a scatter what it gets, of an all_to_all what goes to each member."""
    dtype: str = "float32"
    transfer: tuple[int, int] | None = None
    """Of a send or a receive: from which rank to which."""
    sends: tuple[int, ...] = ()
    """Of an all_to_all whose splits were recorded: elements to each member."""
    receives: tuple[int, ...] = ()
    later: bool = False
    """The program went on before it was finished."""
    where: str = ""
    """Number and place, for the reader."""

    @property
    def label(self) -> tuple[object, ...]:
        """What members must agree on."""
        if self.op == "all_to_all":
            return self.op, self.dtype
        return (self.op,) if self.op in ("barrier", NEW_GROUP) else (self.op, self.elements, self.dtype)


@dataclass(frozen=True)
class Program:
    """What one rank calls, and what becomes of it then."""

    calls: tuple[ReproCall, ...] = ()
    end: str = ""
    """stay_away (it never comes to another call) | leave (its process ends) | empty: it has finished."""


@dataclass(frozen=True)
class Recording:
    """The end of a job as it was recorded: the calls that not all members finished."""

    programs: Mapping[int, Program]
    groups: Mapping[str, tuple[int, ...]]
    """Members by name; `world` is among them."""
    suspects: frozenset[int] = frozenset()
    left_out: Sequence[str] = field(default_factory=list)

    def in_turn(self) -> Recording:
        """The same calls, none of which a rank leaves before it is finished: a device does them in their order."""
        programs = {
            rank: replace(program, calls=tuple(replace(call, later=False) for call in program.calls))
            for rank, program in self.programs.items()
        }
        said = "that the program went on before calls were finished: the device does them one after the other"
        return replace(self, programs=programs, left_out=[*self.left_out, said])

    def of(self, ranks: Sequence[int]) -> Recording:
        """The same job with some of its ranks alone. A group of one needs nobody and calls nothing."""
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
