"""The training programs of a job's ranks: the operations of a step, their order, and their source lines.

They differ between ranks as in real jobs: by pipeline stage, by the source of a broadcast, by conditional logging. In a
healthy job, the ranks still agree on every collective of a group.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ddx_evals.simulator.training import call_paths as paths
from ddx_evals.simulator.training.call_paths import Place, api, module_call, stack, user
from ddx_evals.simulator.training.calls import Calls
from ddx_evals.simulator.training.instructions import (
    Batch,
    Compute,
    Instruction,
    Program,
    Sign,
    SimulatedTransfer,
    Wait,
)
from ddx_evals.simulator.training.mesh import WORLD, SimulatedGroup, SimulatedMesh
from ddx_evals.simulator.training.pipeline import (
    Exchange,
    Pass,
    Work,
    all_forward_all_backward,
    one_forward_one_backward,
)
from ddx_evals.simulator.training.plan import Plan


def _in_step(line: int) -> tuple[Place, ...]:
    return (user("train_step", "train.py", line), user("train", "train.py", 201), *paths.MAIN)


def _in_train(line: int) -> tuple[Place, ...]:
    return (user("train", "train.py", line), *paths.MAIN)


_IN_MODEL = (*module_call(user("forward", "model.py", 127)), *_in_step(164))
_IN_BLOCK = (*module_call(user("forward", "model.py", 93)), *_IN_MODEL)
_IN_ATTENTION = (*module_call(user("forward", "model.py", 71)), *_IN_BLOCK)
_IN_MLP = (*module_call(user("forward", "model.py", 48)), *_IN_BLOCK)
_IN_EXPERTS = (*module_call(user("forward", "moe.py", 88)), *_IN_BLOCK)


class Training:
    """Builds each rank's program."""

    def __init__(self, mesh: SimulatedMesh, plan: Plan, *, gloo: bool):
        self.mesh = mesh
        self.plan = plan
        self.gloo = gloo
        self.calls = Calls(gloo)
        self._routings: dict[tuple[int, int], list[tuple[int, ...]]] = {}

    def routing(self, group: SimulatedGroup, variation: int) -> list[tuple[int, ...]]:
        """The rows of tokens that each member of an expert group sends to each other member."""
        if (group.index, variation) not in self._routings:
            choice = random.Random(f"{self.plan.seed}/{group.index}/{variation}")
            share = self.plan.tokens // group.size
            rows = [tuple(choice.randrange(share // 2, share * 3 // 2) for _ in group.ranks) for _ in group.ranks]
            self._routings[group.index, variation] = rows
        return self._routings[group.index, variation]

    def write(self, rank: int, steps: int) -> Written:
        """Write a rank's program of `steps` steps."""
        author = _Author(self, rank)
        program: Program = []
        begins = []
        for step in range(steps):
            begins.append(len(program))
            program += author.step(step)
        return Written(program, begins, list(author.history(CYCLE)))


CYCLE = 60
"""The number of steps after which all periodic work repeats."""


@dataclass(frozen=True)
class Written:
    """A rank's program, the index at which each step begins, and the parts of one cycle with their counts."""

    program: Program
    begins: list[int]
    cycle: list[tuple[list[Instruction], int]]


class _Author:
    """Writes one rank's steps; parts that do not change from step to step are written once."""

    def __init__(self, training: Training, rank: int):
        self._training = training
        self.plan, self.mesh, self.calls = training.plan, training.mesh, training.calls
        self.rank = rank
        self.groups = training.mesh.of_rank[rank]
        self.stage = training.mesh.coordinate(rank, "pp")
        self.layers = self.plan.layers[self.stage]
        self.gloo = training.gloo
        self._written: dict[int, list[Instruction]] = {}

    def history(self, steps: int) -> Iterator[tuple[list[Instruction], int]]:
        """Yield the parts of the first `steps` steps (a multiple of `CYCLE`) with the number of times each ran."""
        plan = self.plan
        yield self._passes(0), steps
        yield [*self._update, *self._handover], steps
        for every, part in (
            (plan.weights_every, self._from_rank_0),
            (plan.logging_every, self._logging),
            (plan.checkpoint_every, self._checkpoint),
            (plan.barrier_every, self._barrier),
        ):
            if every:
                yield part, steps // every

    def step(self, number: int) -> list[Instruction]:
        """One optimizer step."""
        plan = self.plan
        out: list[Instruction] = [Compute(plan.loading_cpu_ns, 0)]
        if plan.weights_every and number % plan.weights_every == 0:
            out += self._from_rank_0
        out += self._passes(number % 3 if self.mesh.experts > 1 else 0)
        out += self._update
        out += self._handover
        if plan.logging_every and number % plan.logging_every == 0:
            out += self._logging
        if plan.checkpoint_every and number % plan.checkpoint_every == plan.checkpoint_every - 1:
            out += self._checkpoint
        if plan.barrier_every and number % plan.barrier_every == 0:
            out += self._barrier
        return out

    def _passes(self, variation: int) -> list[Instruction]:
        """All microbatches, forward and backward; `variation` chooses the routing of tokens to experts."""
        if variation not in self._written:
            self._written[variation] = self._write_passes(variation)
        return self._written[variation]

    def _write_passes(self, variation: int) -> list[Instruction]:
        plan, stages = self.plan, self.mesh.sizes["pp"]
        schedule = one_forward_one_backward if plan.one_forward_one_backward else all_forward_all_backward
        out: list[Instruction] = []
        for item in schedule(self.stage, stages, plan.microbatches):
            if isinstance(item, Exchange):
                out += self._exchange(item)
            elif item.kind is Pass.FORWARD:
                out += self._forward(item, variation)
            else:
                out += self._backward(item, variation)
        return out

    def _forward(self, work: Work, variation: int) -> list[Instruction]:
        out: list[Instruction] = []
        gather = self.plan.sharded and work.microbatch == 0 and "dp" in self.groups
        if gather:
            out.append(self._unshard(paths.FSDP_PRE_FORWARD, _IN_MODEL))
        for layer in range(self.layers):
            if gather:
                out.append(Wait(self.groups["dp"]))
                if layer + 1 < self.layers:
                    out.append(self._unshard(paths.FSDP_PRE_FORWARD, _IN_MODEL))
            out.append(self._computed(1))
            out += self._tensor_parallel(_IN_ATTENTION, 44, "main")
            out += self._experts(layer, variation, 112, _IN_EXPERTS, "main")
            out.append(self._computed(1))
            out += self._tensor_parallel(_IN_MLP, 47, "main")
        return out

    def _backward(self, work: Work, variation: int) -> list[Instruction]:
        out: list[Instruction] = []
        last = work.microbatch == self.plan.microbatches - 1
        thread, below = self._backward_thread
        sharded = self.plan.sharded and "dp" in self.groups
        for layer in reversed(range(self.layers)):
            if sharded and self.plan.microbatches == 1:
                out += [self._unshard(paths.FSDP_PRE_BACKWARD, below), Wait(self.groups["dp"])]
            out.append(self._computed(2))
            out += self._tensor_parallel(
                (user("backward", "parallel.py", 61), paths.AUTOGRAD_FUNCTION, *below), 58, thread
            )
            out += self._experts(layer, variation + 1, 131, (paths.AUTOGRAD_FUNCTION, *below), thread)
            out.append(self._computed(2))
            if sharded and last:
                out.append(self._reshard(below, thread))
        if not self.plan.sharded and last and "dp" in self.groups:
            out += self._buckets(below, thread)
        return out

    @property
    def _backward_thread(self) -> tuple[str, tuple[Place, ...]]:
        """The thread and frames of backward hooks: the autograd engine's device thread, without user frames below."""
        if self.gloo:
            return "main", (*paths.BACKWARD, *_in_step(171))
        return "autograd", ()

    def _computed(self, weight: int) -> Compute:
        return Compute(400_000, self.plan.layer_gpu_ns * weight)

    def _tensor_parallel(self, below: tuple[Place, ...], line: int, thread: str) -> list[Instruction]:
        group = self.groups.get("tp")
        if group is None:
            return []
        part = (self.plan.tokens // group.size, self.plan.hidden)
        if not self.plan.sequence_parallel:
            where = stack(*api("all_reduce"), user("reduce_from_model_parallel", "parallel.py", line - 10), *below)
            return [self.calls.all_reduce(group, (self.plan.tokens, self.plan.hidden), where, thread=thread)]
        gathered = stack(*api("all_gather_into_tensor"), user("gather_sequence", "parallel.py", line), *below)
        scattered = stack(*api("reduce_scatter_tensor"), user("scatter_sequence", "parallel.py", line + 22), *below)
        return [
            self.calls.all_gather(group, part, gathered, thread=thread),
            self._computed(1),
            self.calls.reduce_scatter(group, part, scattered, thread=thread),
        ]

    def _experts(
        self, layer: int, variation: int, line: int, below: tuple[Place, ...], thread: str
    ) -> list[Instruction]:
        """Send tokens to the experts and back; splits differ per rank and step, and pair up."""
        group = self.groups.get("ep")
        if group is None or layer % 2:
            return []
        routing = self._training.routing(group, variation)
        mine = group.local[self.rank]
        sent, received = routing[mine], tuple(row[mine] for row in routing)
        there = stack(*api("all_to_all_single"), user("dispatch", "moe.py", line), *below)
        back = stack(*api("all_to_all_single"), user("combine", "moe.py", line + 7), *below)
        return [
            self.calls.all_to_all(group, self.plan.hidden, sent, received, there, ("dispatch", variation), thread),
            self._computed(1),
            self.calls.all_to_all(group, self.plan.hidden, received, sent, back, ("combine", variation), thread),
        ]

    def _unshard(self, hook: tuple[Place, ...], below: tuple[Place, ...]) -> Instruction:
        thread = "main" if hook is paths.FSDP_PRE_FORWARD else self._backward_thread[0]
        frames = stack(*hook, *below)
        return self.calls.all_gather(self.groups["dp"], self._shard, frames, asynchronous=True, thread=thread)

    def _reshard(self, below: tuple[Place, ...], thread: str) -> Instruction:
        where = stack(*paths.FSDP_POST_BACKWARD, *below)
        return self.calls.reduce_scatter(self.groups["dp"], self._shard, where, asynchronous=True, thread=thread)

    @property
    def _shard(self) -> tuple[int]:
        """The number of elements of a layer's parameters that one rank keeps."""
        return (12 * self.plan.hidden**2 // self.mesh.sizes["tp"] // self.groups["dp"].size,)

    def _buckets(self, below: tuple[Place, ...], thread: str) -> list[Instruction]:
        """DDP's gradient buckets; the reducer is C++, so that a backward thread has no Python frame."""
        size = 12 * self.plan.hidden**2 * self.layers // self.plan.buckets
        out: list[Instruction] = []
        for bucket in range(self.plan.buckets):
            shape = (size + 1024 * bucket,)
            out.append(self.calls.all_reduce(self.groups["dp"], shape, stack(*below), asynchronous=True, thread=thread))
            out.append(Compute(150_000, self.plan.layer_gpu_ns // 2))
        return out

    @cached_property
    def _update(self) -> list[Instruction]:
        """After backward: wait for and clip gradients, run the optimizer step, log the loss."""
        out: list[Instruction] = []
        if "dp" in self.groups:
            out.append(Wait(self.groups["dp"]))
        if "embedding" in self.groups:
            where = stack(*api("all_reduce"), user("reduce_tied_embedding", "parallel.py", 140), *_in_step(176))
            out.append(self.calls.all_reduce(self.groups["embedding"], (32000, self.plan.hidden), where))
        norm = (user("clip_grad_norm", "parallel.py", 171), *_in_step(179))
        out += [
            self.calls.all_reduce(self.groups[axis], (1,), stack(*api("all_reduce"), *norm), "Float")
            for axis in ("tp", "pp")
            if axis in self.groups
        ]
        out.append(Compute(1_500_000, self.plan.layer_gpu_ns // 2))
        where = stack(*api("all_reduce"), user("average_loss", "train.py", 122), *_in_step(186))
        out += [self.calls.all_reduce(self.groups[WORLD], (1,), where, "Float"), Sign.SYNCHRONIZE]
        return out

    @cached_property
    def _from_rank_0(self) -> list[Instruction]:
        """Rank 0 broadcasts from different lines than the receivers use: a healthy idiom."""
        places = _in_train(192) if self.rank == 0 else _in_train(195)
        where = stack(*api("broadcast"), *places)
        return [self.calls.broadcast(self.groups[WORLD], (self.plan.hidden,), 0, where)]

    @cached_property
    def _logging(self) -> list[Instruction]:
        """Statistics at some steps; every rank takes the branch, and rank 0 logs them."""
        where = stack(*api("all_reduce"), user("log_metrics", "train.py", 141), *_in_train(207))
        return [
            self.calls.all_reduce(self.groups[WORLD], (8,), where, "Float"),
            Compute(9_000_000 if self.rank == 0 else 300_000, 0),
        ]

    @cached_property
    def _handover(self) -> list[Instruction]:
        """Pairs of neighbours exchange data: the even rank sends first, the odd rank receives first."""
        group = self.groups.get(self.plan.handover)
        if group is None:
            return []
        mine = group.local[self.rank]
        peer = mine ^ 1
        if peer >= group.size:
            return []
        out: list[Instruction] = []
        for sends in (True, False) if mine % 2 == 0 else (False, True):
            line = 66 if sends else 68
            where = stack(*api("send" if sends else "recv"), user("hand_over", "stats.py", line), *_in_train(204))
            out.append(self.calls.transfer(group, sends, peer, (4096,), where, "Float"))
        return out

    @cached_property
    def _barrier(self) -> list[Instruction]:
        return [self.calls.barrier(self.groups[WORLD], stack(*api("barrier"), *_in_train(214)))]

    @cached_property
    def _checkpoint(self) -> list[Instruction]:
        """Metadata to rank 0, then a barrier."""
        in_save = (user("save", "checkpoint.py", 77), *_in_train(211))
        world = self.groups[WORLD]
        return [
            self.calls.gather(world, self.rank, (256,), 0, stack(*api("gather"), *in_save)),
            Compute(20_000_000, 0),
            self.calls.barrier(world, stack(*api("barrier"), user("save", "checkpoint.py", 90), *_in_train(211))),
        ]

    def _exchange(self, exchange: Exchange) -> list[Instruction]:
        """Exchange activations and gradients between pipeline stages."""
        group = self.groups["pp"]
        mine = group.local[self.rank]
        shape = (self.plan.tokens // self.mesh.sizes["tp"], self.plan.hidden)
        transfers = []
        for move in exchange.moves:
            function = "isend" if move.sends else "irecv"
            line = (88 if move.sends else 93) + (move.neighbour > 0) * 16
            caller = user("_communicate", "pipeline.py", line)
            if self.plan.batched:
                places = (*api(function)[:1], *api("batch_isend_irecv")[:1], caller)
            else:
                places = (*api(function[1:]), caller)
            schedule = 151 if self.plan.one_forward_one_backward else 187
            where = stack(*places, user("run_schedule", "pipeline.py", schedule), *_in_step(168))
            transfers.append(self.calls.transfer(group, move.sends, mine + move.neighbour, shape, where))
        if not self.plan.batched:
            return list(transfers)
        return [batch(transfers)]


def batch(transfers: list[SimulatedTransfer]) -> Batch:
    """Transfers as one `batch_isend_irecv`; the closing entry's frames are those of the caller."""
    caller = [(str(f["name"]), str(f["filename"]), int(str(f["line"]))) for f in transfers[0].frames[1:]]
    return Batch(tuple(transfers), stack(*caller), max(transfer.took_ns for transfer in transfers))
