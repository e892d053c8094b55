"""Makes a job with a fault and runs it to completion or to its hang."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ddx_evals.simulator.engine import Engine, RankRun
from ddx_evals.simulator.faults import FAULTS
from ddx_evals.simulator.faults.draft import Draft, Injection
from ddx_evals.simulator.formats.dump_style import Format
from ddx_evals.simulator.requirements import chosen_mesh, chosen_plan
from ddx_evals.simulator.training.instructions import Batch, Collective, SimulatedTransfer
from ddx_evals.simulator.training.mesh import SimulatedMesh
from ddx_evals.simulator.training.schedule import Training
from ddx_evals.simulator.truth import HEALTHY

START_NS = 1_795_239_921_939_717_451
_ATTEMPTS = 40
_OPERATIONS = 110_000
"""The approximate number of simulated operations of all ranks together in large jobs."""


@dataclass(frozen=True)
class Wish:
    """Required properties of a job, in place of the seed's choices."""

    style: Format
    shape: tuple[int, int, int, int]
    """The sizes of pp, dp, tp and ep."""
    rank: int | None = None
    """The faulty rank; None: any."""


@dataclass(frozen=True)
class Ran:
    """A job that has run, its fault, and the runs of all ranks."""

    draft: Draft
    injection: Injection | None
    runs: list[RankRun]


def run(seed: int, kind: str, world_size: int, *, gloo: bool, wish: Wish | None = None) -> Ran:
    """Run the job of this seed; the fault is tried in one place after another until it has the intended effect.

    A wish overrides the seed; kernel start times are then recorded.

    Raises:
        ValueError: the fault has no place in a job of this size.
    """
    style = wish.style if wish else Format.chosen(random.Random(f"{seed}/{kind}/format"), gloo=gloo)
    for attempt in range(_ATTEMPTS):
        ran = _attempt(random.Random(f"{seed}/{kind}/{attempt}"), kind, world_size, style, wish)
        if ran is not None:
            return ran
    raise ValueError(f"a job of {world_size} ranks has no place for {kind}")


def _attempt(choice: random.Random, kind: str, world_size: int, style: Format, wish: Wish | None) -> Ran | None:
    mesh = SimulatedMesh(*wish.shape) if wish else chosen_mesh(choice, kind, world_size)
    if mesh is None:
        return None
    plan = chosen_plan(choice, kind, mesh, gloo=style.gloo)
    training = Training(mesh, plan, gloo=style.gloo)
    steps = _steps(training)
    written = [training.write(rank, steps) for rank in range(world_size)]
    draft = Draft(
        mesh,
        plan,
        programs=[each.program for each in written],
        begins=[each.begins for each in written],
        cycles=[each.cycle for each in written],
        style=style,
        timing=style.can_time and (wish is not None or choice.random() < 0.6),
        choice=choice,
        rank=wish.rank if wish else None,
    )
    injection = FAULTS[kind](draft) if kind != HEALTHY else None
    if kind != HEALTHY and injection is None:
        return None
    engine = Engine(draft.programs, start_ns=START_NS, blocking=style.gloo, seed=choice.randrange(1 << 30))
    if injection is not None:
        engine.never_ends |= injection.never_ends
    runs = engine.run()
    hangs = any(each.waits for each in runs)
    if injection is None and hangs:
        raise AssertionError(f"a healthy job hangs: {mesh.sizes} {plan}")
    if injection is not None and hangs != injection.hangs:
        return None
    return Ran(draft, injection, runs)


def _steps(training: Training) -> int:
    """The number of steps for a few hundred operations per rank, fewer in larger worlds."""
    a_step = sum(isinstance(i, Collective | SimulatedTransfer | Batch) for i in training.write(0, 1).program)
    wanted = max(150, min(900, _OPERATIONS // training.mesh.world_size))
    return max(4, min(40, wanted // max(1, a_step)))
