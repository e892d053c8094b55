"""A job that is still being written, and what a fault makes of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from ddx_evals.simulator.formats.dump_style import Format
from ddx_evals.simulator.training.instructions import Collective, Instruction, Program
from ddx_evals.simulator.training.mesh import SimulatedMesh
from ddx_evals.simulator.training.plan import Plan


@dataclass
class Draft:
    """The programs of a job before it runs. A fault changes them in place."""

    mesh: SimulatedMesh
    plan: Plan
    programs: list[Program]
    begins: list[list[int]]
    """Per rank: the index at which each step begins."""
    cycles: list[list[tuple[list[Instruction], int]]]
    """Per rank: the parts of one cycle of steps with their counts."""
    style: Format
    timing: bool
    """Whether the dumps tell what started."""
    choice: random.Random
    rank: int | None = None
    """The rank that goes wrong, if somebody wants a certain one."""

    @property
    def gloo(self) -> bool:
        """Whether Gloo is the backend, which blocks the CPU and records no transfers."""
        return self.style.gloo

    def collectives(self, rank: int, *, after: float = 0.45, before: float = 0.9) -> Iterator[tuple[int, Collective]]:
        """A rank's collectives with their index, in the given part of its program, in groups of two and more."""
        program = self.programs[rank]
        for index in range(int(len(program) * after), int(len(program) * before)):
            instruction = program[index]
            if isinstance(instruction, Collective) and instruction.group.size > 1:
                yield index, instruction

    def some_rank(self) -> int:
        """Any rank, unless a certain one is wanted."""
        return self.choice.randrange(self.mesh.world_size) if self.rank is None else self.rank

    def some_step(self) -> int:
        """A step in the later half, not the last."""
        steps = len(self.begins[0])
        return self.choice.randrange(steps // 2, max(steps // 2 + 1, steps - 1))


@dataclass(frozen=True)
class Injection:
    """What a fault did to a draft, and what follows from that for truth."""

    culprits: tuple[int, ...]
    causes: tuple[str, ...]
    note: str
    hangs: bool = True
    """Whether the job is meant to hang: tried again elsewhere if it does not."""
    decided: bool = True
    """Whether complete dumps of the hang tell the culprits."""
    fair_undecided: str = ""
    """Why "undecided" is a fair answer although the dumps may tell; empty: it is not."""
    alternatives: tuple[tuple[int, ...], ...] = ()
    group: str = ""
    place: str = ""
    dead: frozenset[int] = frozenset()
    """Ranks that leave no dump."""
    frozen: dict[int, int] = field(default_factory=dict)
    """Rank to how many of its last completions its watchdog never saw."""
    never_ends: frozenset[tuple[int, int]] = frozenset()
    """(group index, n-th collective) whose kernels all run and never end."""
    by_timeout: bool = False
    """Only a watchdog's timeout can have dumped it."""
    by_records: bool = False
    """What is pending has to be in the dumps to tell the culprits: counters do not."""
    by_pairing: bool = False
    """What pairs up tells the culprits: transfers or splits, not who is absent where."""
    shown: FaultSigns | None = None


@dataclass(frozen=True)
class FaultSigns:
    """Where a fault without a hang shows, as long as the ring holds it: collectives of a group, first to last."""

    group: int
    numbers: frozenset[int]
    """n-th collectives of the group in the programs, from 1."""
    enough: int = 1
    """How many of them have to be left in the members' dumps."""
    by_frames: bool = False
    """Only the call sites tell."""


Fault: TypeAlias = Callable[[Draft], Injection | None]
"""Changes a draft; None, and nothing changed, where this job has no place for such a fault."""


def place(collective: Collective) -> str:
    """file:line of the innermost frame in the user's code."""
    for frame in collective.frames:
        if str(frame["filename"]).startswith("/srv/train/"):
            return f"{frame['filename']}:{frame['line']}"
    return ""


def nth(program: Program, index: int) -> tuple[int, int]:
    """(group index, n): the collective at `index` is the program's n-th of its group."""
    collective = program[index]
    assert isinstance(collective, Collective)
    group = collective.group
    return group.index, sum(isinstance(i, Collective) and i.group is group for i in program[: index + 1])
