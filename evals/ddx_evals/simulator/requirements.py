"""Chooses the mesh and plan of a job so that its fault has a place."""

from __future__ import annotations

import random
from dataclasses import replace

from ddx_evals.simulator.training.mesh import Naming, SimulatedMesh
from ddx_evals.simulator.training.plan import Plan

_HANDOVER = {"both_send_first": 2, "missing_send": 2, "missing_recv": 2, "wrong_peer": 4}
"""Kinds of fault in a hand-over, and the number of members that it needs."""

NCCL_ONLY = frozenset({"frozen_completion", "gpu_stuck", "kernel_hang", "nobody_entered", "stage_schedule_differs"})
"""Kinds of fault about kernels or batched transfers, which Gloo does not have."""


def chosen_mesh(choice: random.Random, kind: str, world_size: int) -> SimulatedMesh | None:
    """A random mesh of this many ranks that suits a kind of fault; None if there is none."""
    shapes = [
        (pp, world_size // tp // pp, tp)
        for tp in (1, 2, 4, 8)
        for pp in (1, 2, 4, 8)
        if world_size % (tp * pp) == 0 and _suits(kind, pp, world_size // tp // pp, tp)
    ]
    if not shapes:
        return None
    # Pure data parallelism is as common as all other meshes together.
    plain = [shape for shape in shapes if shape[0] == shape[2] == 1]
    pp, dp, tp = choice.choice(plain if plain and choice.random() < 0.25 else shapes)
    blocks = [ep for ep in (2, 4, 8) if dp % ep == 0]
    if kind == "wrong_splits":
        ep = max(blocks)
    else:
        ep = choice.choice(blocks) if blocks and choice.random() < 0.2 else 1
    return SimulatedMesh(pp, dp, tp, ep, naming=Naming.chosen(choice), tied=choice.random() < 0.3)


def _suits(kind: str, pp: int, dp: int, tp: int) -> bool:
    if kind in _HANDOVER:
        return max(pp, dp) >= _HANDOVER[kind]
    if kind == "stage_schedule_differs":
        return pp > 1 and tp == 1
    return kind != "wrong_splits" or dp % 2 == 0


def chosen_plan(choice: random.Random, kind: str, mesh: SimulatedMesh, *, gloo: bool) -> Plan:
    """A random plan for this mesh that suits a kind of fault."""
    plan = Plan.chosen(choice, mesh, gloo=gloo)
    if kind in _HANDOVER:
        axes = [axis for axis in ("pp", "dp") if mesh.sizes[axis] >= _HANDOVER[kind]]
        return replace(plan, handover=choice.choice(axes))
    if kind == "stage_schedule_differs":
        return replace(plan, one_forward_one_backward=True, batched=True)
    if kind == "wrong_root":
        return replace(plan, weights_every=2, checkpoint_every=2)
    return plan
