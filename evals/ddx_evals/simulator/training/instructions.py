"""The instructions of a rank's program, between the training schedule and the event simulation."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from ddx_evals.simulator.formats.torch_pickle import PickledFrame
from ddx_evals.simulator.training.mesh import SimulatedGroup

Sizes: TypeAlias = list[object]
"""The shapes of the tensors on one side of an operation: lists of lists of int."""


@dataclass(frozen=True, eq=False, slots=True)
class Collective:
    """One call of a collective on one rank, with what the flight recorder records about it."""

    group: SimulatedGroup
    name: str
    frames: list[PickledFrame]
    inputs: Sizes
    outputs: Sizes
    input_dtypes: list[object]
    output_dtypes: list[object]
    agreement: Hashable
    """The value on which members must agree for the operation to end: name, sizes, and the root, which no record
    shows."""
    took_ns: int
    """The duration once the last member has entered it."""
    asynchronous: bool = False
    """The main stream does not wait for it until `Wait`."""
    thread: str = "main"
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """all_to_all: elements to and from each member."""


@dataclass(frozen=True, eq=False, slots=True)
class SimulatedTransfer:
    """One send or receive; `peer` is the group-local rank of the other side."""

    group: SimulatedGroup
    sends: bool
    peer: int
    frames: list[PickledFrame]
    sizes: Sizes
    dtypes: list[object]
    took_ns: int


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """`batch_isend_irecv`: transfers that run as one kernel."""

    transfers: tuple[SimulatedTransfer, ...]
    frames: list[PickledFrame]
    took_ns: int

    @property
    def group(self) -> SimulatedGroup:
        """The process group of all its transfers."""
        return self.transfers[0].group


@dataclass(frozen=True, slots=True)
class Compute:
    """Time that a rank spends before its next instruction: on the CPU for launching, then on the main stream."""

    cpu_ns: int
    gpu_ns: int


@dataclass(frozen=True, slots=True)
class Wait:
    """The main stream waits for the rank's last operation on a group."""

    group: SimulatedGroup


class Sign(Enum):
    """Instructions without operands."""

    SYNCHRONIZE = "the CPU waits for the main stream, as loss.item() does"
    CPU_STUCK = "the CPU never gets further"
    GPU_STUCK = "a kernel on the main stream never ends; the CPU goes on"


Operation: TypeAlias = Collective | SimulatedTransfer | Batch
Instruction: TypeAlias = Operation | Compute | Wait | Sign
Program: TypeAlias = list[Instruction]
