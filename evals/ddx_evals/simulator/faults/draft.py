"""A job under construction, and the effect of a fault on it."""

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
    """For each rank, the index at which each step begins."""
    cycles: list[list[tuple[list[Instruction], int]]]
    """For each rank, the parts of one cycle of steps with their counts."""
    style: Format
    timing: bool
    """Whether the dumps show what started."""
    choice: random.Random
    rank: int | None = None
    """The faulty rank, if a specific one is requested."""

    @property
    def gloo(self) -> bool:
        """Whether Gloo is the backend, which blocks the CPU and records no transfers."""
        return self.style.gloo

    def collectives(self, rank: int, *, after: float = 0.45, before: float = 0.9) -> Iterator[tuple[int, Collective]]:
        """Yield a rank's collectives with their index, in the given part of its program, in groups of two or more."""
        program = self.programs[rank]
        for index in range(int(len(program) * after), int(len(program) * before)):
            instruction = program[index]
            if isinstance(instruction, Collective) and instruction.group.size > 1:
                yield index, instruction

    def some_rank(self) -> int:
        """A random rank, or the requested one."""
        return self.choice.randrange(self.mesh.world_size) if self.rank is None else self.rank

    def some_step(self) -> int:
        """A random step in the second half, but not the last."""
        steps = len(self.begins[0])
        return self.choice.randrange(steps // 2, max(steps // 2 + 1, steps - 1))


@dataclass(frozen=True)
class Injection:
    """The effect of a fault on a draft, and the resulting truth."""

    culprits: tuple[int, ...]
    causes: tuple[str, ...]
    note: str
    hangs: bool = True
    """Whether the job must hang; if it does not, the fault is tried elsewhere."""
    decided: bool = True
    """Whether complete dumps of the hang show the culprits."""
    fair_undecided: str = ""
    """Why "undecided" is a fair answer although the dumps may show the culprits; "" if it is not."""
    alternatives: tuple[tuple[int, ...], ...] = ()
    group: str = ""
    place: str = ""
    dead: frozenset[int] = frozenset()
    """Ranks that leave no dump."""
    frozen: dict[int, int] = field(default_factory=dict)
    """For each rank, the number of its last completions that its watchdog never noticed."""
    never_ends: frozenset[tuple[int, int]] = frozenset()
    """(group index, n-th collective) of collectives whose kernels all run and never end."""
    by_timeout: bool = False
    """Whether only a watchdog's timeout can have dumped it."""
    by_records: bool = False
    """Whether pending entries must be in the dumps to show the culprits, since counters do not."""
    by_pairing: bool = False
    """Whether the pairing of transfers or splits shows the culprits, rather than absence."""
    shown: FaultSigns | None = None


@dataclass(frozen=True)
class FaultSigns:
    """Where a fault without a hang shows while the ring holds it: a range of a group's collectives."""

    group: int
    numbers: frozenset[int]
    """The numbers of the group's collectives in the programs, from 1."""
    enough: int = 1
    """How many of them must be left in the members' dumps."""
    by_frames: bool = False
    """Whether only the call sites show it."""


Fault: TypeAlias = Callable[[Draft], Injection | None]
"""Changes a draft; returns None, with nothing changed, if this job has no place for the fault."""


def place(collective: Collective) -> str:
    """The file:line of the innermost frame in the user's code."""
    for frame in collective.frames:
        if str(frame["filename"]).startswith("/srv/train/"):
            return f"{frame['filename']}:{frame['line']}"
    return ""


def nth(program: Program, index: int) -> tuple[int, int]:
    """(group index, n) of the collective at `index`, which is the program's n-th in its group."""
    collective = program[index]
    assert isinstance(collective, Collective)
    group = collective.group
    return group.index, sum(isinstance(i, Collective) and i.group is group for i in program[: index + 1])
