"""Pipeline schedules: the order in which a stage computes microbatches and exchanges activations and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Pass(Enum):
    """The pass computed for a microbatch."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True)
class Move:
    """A send to or a receive from the next (+1) or previous (-1) stage, of a microbatch's activations or gradients."""

    sends: bool
    neighbour: int
    microbatch: int


@dataclass(frozen=True)
class Exchange:
    """Moves that are issued together."""

    moves: tuple[Move, ...]


@dataclass(frozen=True)
class Work:
    """Compute one pass of one microbatch."""

    kind: Pass
    microbatch: int


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> Iterator[Work | Exchange]:
    """1F1B as in Megatron-LM: in the steady phase, a send and the opposite receive are issued together."""
    warm = min(stages - stage - 1, microbatches)
    steady = microbatches - warm
    for i in range(warm):
        yield from _exchange(stage, stages, Move(False, -1, i))
        yield Work(Pass.FORWARD, i)
        yield from _exchange(stage, stages, Move(True, +1, i))
    if steady:
        yield from _exchange(stage, stages, Move(False, -1, warm))
    for i in range(steady):
        yield Work(Pass.FORWARD, warm + i)
        yield from _exchange(stage, stages, Move(True, +1, warm + i), Move(False, +1, i))
        yield Work(Pass.BACKWARD, i)
        back = [Move(True, -1, i)]
        if i + 1 < steady:
            back.append(Move(False, -1, warm + i + 1))
        yield from _exchange(stage, stages, *back)
    for i in range(steady, microbatches):
        yield from _exchange(stage, stages, Move(False, +1, i))
        yield Work(Pass.BACKWARD, i)
        yield from _exchange(stage, stages, Move(True, -1, i))


def all_forward_all_backward(stage: int, stages: int, microbatches: int) -> Iterator[Work | Exchange]:
    """GPipe: every forward, then every backward."""
    for i in range(microbatches):
        yield from _exchange(stage, stages, Move(False, -1, i))
        yield Work(Pass.FORWARD, i)
        yield from _exchange(stage, stages, Move(True, +1, i))
    for i in range(microbatches):
        yield from _exchange(stage, stages, Move(False, +1, i))
        yield Work(Pass.BACKWARD, i)
        yield from _exchange(stage, stages, Move(True, -1, i))


def _exchange(stage: int, stages: int, *moves: Move) -> Iterator[Exchange]:
    """Yield an exchange of the moves that have a neighbour, if any."""
    possible = tuple(move for move in moves if 0 <= stage + move.neighbour < stages)
    if possible:
        yield Exchange(possible)
