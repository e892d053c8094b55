"""The plan of a job's step, apart from its mesh: sizes, schedules, habits."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ddx_evals.simulator.training.mesh import SimulatedMesh

_MS = 1_000_000


@dataclass(frozen=True)
class Plan:
    """The plan of a job, apart from its mesh. Times are for one layer's forward on one microbatch."""

    sharded: bool
    """FSDP: parameters are gathered layer by layer; otherwise DDP with gradient buckets."""
    sequence_parallel: bool
    layers: tuple[int, ...]
    """The number of layers per pipeline stage."""
    microbatches: int
    one_forward_one_backward: bool
    """Whether the pipeline's schedule is 1F1B; otherwise GPipe."""
    batched: bool
    """Whether pipelines exchange by `batch_isend_irecv`, as 1F1B needs; otherwise by single sends and receives."""
    handover: str
    """The axis along which neighbours exchange statistics by send and recv at the end of a step; "": none."""
    hidden: int
    tokens: int
    buckets: int
    layer_gpu_ns: int
    loading_cpu_ns: int
    weights_every: int
    """The steps between broadcasts from rank 0, which calls them from its own lines; 0: never."""
    logging_every: int
    barrier_every: int
    checkpoint_every: int
    seed: int

    @classmethod
    def chosen(cls, choice: random.Random, mesh: SimulatedMesh, *, gloo: bool) -> Plan:
        """A random plan for this mesh."""
        stages = mesh.sizes["pp"]
        layers = choice.choice((1, 2, 2, 3, 4)) if stages > 1 else choice.choice((2, 3, 4, 6))
        alternating = not gloo and choice.random() < 0.6
        axes = [axis for axis in ("pp", "dp") if mesh.sizes[axis] > 1]
        per_stage = [layers] * stages
        if stages > 1 and choice.random() < 0.4:
            per_stage[-1] = max(1, layers - 1)
            per_stage[0] += choice.randrange(2)
        return cls(
            sharded=choice.random() < 0.5,
            sequence_parallel=choice.random() < 0.6,
            layers=tuple(per_stage),
            microbatches=stages + choice.randrange(3) if stages > 1 else 1,
            one_forward_one_backward=alternating,
            batched=alternating or (not gloo and choice.random() < 0.3),
            handover=choice.choice(axes) if axes and choice.random() < 0.15 else "",
            hidden=choice.choice((1024, 2048, 4096, 5120)),
            tokens=choice.choice((2048, 4096, 8192)),
            buckets=choice.randrange(2, 5),
            layer_gpu_ns=int(choice.choice((3, 10, 30, 120)) * _MS * (0.7 + choice.random())),
            loading_cpu_ns=choice.randrange(1, 25) * _MS,
            weights_every=choice.choice((0, 0, 3, 4)),
            logging_every=choice.choice((0, 2, 5)),
            barrier_every=choice.choice((0, 0, 4)),
            checkpoint_every=choice.choice((0, 0, 6)),
            seed=choice.randrange(1 << 30),
        )
