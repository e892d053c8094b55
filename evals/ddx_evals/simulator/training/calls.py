"""The record of a call: how NCCL's and Gloo's process groups name an operation and its tensors.

Sources: ProcessGroupNCCL.cpp and ProcessGroupGloo.cpp of torch 2.x; Gloo's forms are as in the recorded fixtures of
torch 2.13.0. Gloo reduces and keeps a part for `reduce_scatter`, stacks gathered tensors, and has barriers without
tensors.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from ddx_evals.simulator.formats.torch_pickle import PickledFrame
from ddx_evals.simulator.training.instructions import Collective, SimulatedTransfer, Sizes
from ddx_evals.simulator.training.mesh import SimulatedGroup

_BYTES_A_NS = 40
_FLOOR_NS = 25_000
_WIDTH = {"BFloat16": 2, "Half": 2, "Float": 4, "Long": 8, "Byte": 1, "Int": 4}


@cache
def _tensors(*shapes: tuple[int, ...]) -> Sizes:
    return [list(shape) for shape in shapes]


@cache
def _dtypes(dtype: str, count: int) -> list[object]:
    return [dtype] * count


def numel(shapes: Sequence[tuple[int, ...]]) -> int:
    """The total number of elements of several tensors."""
    total = 0
    for shape in shapes:
        product = 1
        for length in shape:
            product *= length
        total += product
    return total


@dataclass(frozen=True)
class Calls:
    """Builds the operations of one backend."""

    gloo: bool

    def collective(
        self,
        group: SimulatedGroup,
        name: str,
        frames: list[PickledFrame],
        inputs: Sequence[tuple[int, ...]],
        outputs: Sequence[tuple[int, ...]],
        dtype: str = "BFloat16",
        *,
        agreement: Hashable = None,
        asynchronous: bool = False,
        thread: str = "main",
    ) -> Collective:
        """Any collective, with the backend's name. By default, all members must agree on name and sizes."""
        size = max(numel(inputs), numel(outputs)) * _WIDTH[dtype]
        return Collective(
            group=group,
            name=name,
            frames=frames,
            inputs=_tensors(*inputs),
            outputs=_tensors(*outputs),
            input_dtypes=_dtypes(dtype, len(inputs)),
            output_dtypes=_dtypes(dtype, len(outputs)),
            agreement=(name, agreement or (numel(inputs), numel(outputs))),
            took_ns=_FLOOR_NS + size // _BYTES_A_NS,
            asynchronous=asynchronous,
            thread=thread,
        )

    def all_reduce(
        self,
        group: SimulatedGroup,
        shape: tuple[int, ...],
        frames: list[PickledFrame],
        dtype: str = "BFloat16",
        *,
        asynchronous: bool = False,
        thread: str = "main",
    ) -> Collective:
        """dist.all_reduce of a tensor."""
        return self.collective(
            group, "all_reduce", frames, [shape], [shape], dtype, asynchronous=asynchronous, thread=thread
        )

    def all_gather(
        self,
        group: SimulatedGroup,
        shape: tuple[int, ...],
        frames: list[PickledFrame],
        *,
        asynchronous: bool = False,
        thread: str = "main",
    ) -> Collective:
        """dist.all_gather_into_tensor; `shape` is one rank's part."""
        whole = (group.size, *shape) if self.gloo else (group.size * shape[0], *shape[1:])
        name = "all_gather" if self.gloo else "_all_gather_base"
        return self.collective(group, name, frames, [shape], [whole], asynchronous=asynchronous, thread=thread)

    def reduce_scatter(
        self,
        group: SimulatedGroup,
        shape: tuple[int, ...],
        frames: list[PickledFrame],
        *,
        asynchronous: bool = False,
        thread: str = "main",
    ) -> Collective:
        """dist.reduce_scatter_tensor; `shape` is one rank's part."""
        whole = (group.size * shape[0], *shape[1:])
        name, part = ("all_reduce", whole) if self.gloo else ("_reduce_scatter_base", shape)
        return self.collective(group, name, frames, [whole], [part], asynchronous=asynchronous, thread=thread)

    def broadcast(
        self,
        group: SimulatedGroup,
        shape: tuple[int, ...],
        root: int,
        frames: list[PickledFrame],
        dtype: str = "BFloat16",
    ) -> Collective:
        """dist.broadcast; no record shows the root (group-local)."""
        agreement = (shape, "root", root)
        return self.collective(group, "broadcast", frames, [shape], [shape], dtype, agreement=agreement)

    def gather(
        self, group: SimulatedGroup, rank: int, shape: tuple[int, ...], root: int, frames: list[PickledFrame]
    ) -> Collective:
        """dist.gather to the root (group-local). For ranks without output, NCCL records an undefined tensor."""
        agreement = (shape, "root", root)
        if group.local[rank] == root:
            outputs = [(group.size, *shape)] if self.gloo else [shape] * group.size
            return self.collective(group, "gather", frames, [shape], outputs, "Float", agreement=agreement)
        made = self.collective(group, "gather", frames, [shape], [], "Float", agreement=agreement)
        return made if self.gloo else replace(made, outputs=_tensors((0,)), output_dtypes=_dtypes("Undefined", 1))

    def barrier(self, group: SimulatedGroup, frames: list[PickledFrame]) -> Collective:
        """dist.barrier: with NCCL an all_reduce of one element."""
        if self.gloo:
            return self.collective(group, "barrier", frames, [], [], agreement="barrier")
        return self.collective(group, "all_reduce_barrier", frames, [(1,)], [(1,)], "Float")

    def all_to_all(
        self,
        group: SimulatedGroup,
        hidden: int,
        sent: tuple[int, ...],
        received: tuple[int, ...],
        frames: list[PickledFrame],
        agreement: Hashable,
        thread: str = "main",
    ) -> Collective:
        """dist.all_to_all_single of rows with `hidden` elements: `sent[i]` rows to and `received[i]` from member i."""
        inputs, outputs = [(sum(sent), hidden)], [(sum(received), hidden)]
        made = self.collective(group, "all_to_all", frames, inputs, outputs, agreement=agreement, thread=thread)
        return replace(made, splits=(sent, received))

    def transfer(
        self,
        group: SimulatedGroup,
        sends: bool,
        peer: int,
        shape: tuple[int, ...],
        frames: list[PickledFrame],
        dtype: str = "BFloat16",
    ) -> SimulatedTransfer:
        """dist.send, recv and variants; `peer` is group-local."""
        took_ns = _FLOOR_NS + numel([shape]) * _WIDTH[dtype] // _BYTES_A_NS
        return SimulatedTransfer(group, sends, peer, frames, _tensors(shape), _dtypes(dtype, 1), took_ns)
