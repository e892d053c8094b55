"""Faults without a hang: the job goes on but is wrong or slow. They show only in the history of the dumps."""

from __future__ import annotations

from dataclasses import replace

from ddx_evals.simulator.faults.draft import Draft, FaultSigns, Injection, nth, place
from ddx_evals.simulator.faults.mismatch import PAIR
from ddx_evals.simulator.training.call_paths import MAIN, api, stack, user
from ddx_evals.simulator.training.calls import Calls
from ddx_evals.simulator.training.instructions import Collective, Compute, Program
from ddx_evals.simulator.training.mesh import WORLD

_MS = 1_000_000


def wrong_dtype(draft: Draft) -> Injection | None:
    """From some step on, one rank reduces fp16 where its peers reduce bf16: same byte count, garbage values."""
    rank = draft.some_rank()
    places = [(i, c) for i, c in draft.collectives(rank) if c.input_dtypes == ["BFloat16"]]
    if not places:
        return None
    index, collective = draft.choice.choice(places)
    program = draft.programs[rank]
    wrong = replace(
        collective,
        input_dtypes=["Half"] * len(collective.input_dtypes),
        output_dtypes=["Half"] * len(collective.output_dtypes),
    )
    group, first = nth(program, index)
    numbers = []
    number = first - 1
    for later in range(index, len(program)):
        instruction = program[later]
        if isinstance(instruction, Collective) and instruction.group is collective.group:
            number += 1
            if instruction is collective:
                program[later] = wrong
                numbers.append(number)
    return Injection(
        (rank,),
        ("collective-dtype-mismatch",),
        f"Rank {rank} passes Half to {collective.name} from its {first}. collective of the group on.",
        hangs=False,
        fair_undecided=PAIR if collective.group.size == 2 else "",
        group=collective.group.name,
        place=place(collective),
        shown=FaultSigns(group, frozenset(numbers)),
    )


def silent_mispairing(draft: Draft) -> Injection | None:
    """One rank calls an extra all_reduce; all have the same size, so that every later one is paired wrongly."""
    rank = draft.some_rank()
    steps, extra = 60, draft.choice.randrange(10, 25)
    for each in range(draft.mesh.world_size):
        draft.programs[each] = _alike(draft, each, steps, extra if each == rank else None)
    draft.cycles = [[] for _ in draft.programs]
    return Injection(
        (rank,),
        ("collective-order-mismatch", "rank0-only-work-with-collective", "rank-skipped-collective"),
        f"Rank {rank} calls one all_reduce more in step {extra}; its later ones pair with its peers' earlier ones.",
        hangs=False,
        group=draft.mesh.of_rank[rank][WORLD].name,
        place="/srv/train/train.py:245",
        shown=FaultSigns(0, frozenset(range(2 * extra + 1, 2 * steps)), enough=2, by_frames=True),
    )


def _alike(draft: Draft, rank: int, steps: int, extra: int | None) -> Program:
    """Steps of two all_reduces of one element. With an extra one, the last is left out, so that no rank waits."""
    world, calls = draft.mesh.of_rank[rank][WORLD], Calls(draft.gloo)

    def reduced(function: str, line: int) -> Collective:
        where = stack(*api("all_reduce"), user(function, "train.py", line), user("train", "train.py", line + 90), *MAIN)
        return calls.all_reduce(world, (1,), where, "Float")

    gradients, loss, more = reduced("sync_grads", 108), reduced("sync_loss", 122), reduced("log_extra", 245)
    program: Program = []
    for step in range(steps):
        program.append(Compute(2 * _MS, 40 * _MS))
        if step == extra:
            program.append(more)
        program += [gradients, Compute(_MS, 3 * _MS), loss]
    return program if extra is None else program[:-1]


def straggler(draft: Draft) -> Injection | None:
    """One rank's CPU is late in every step; its peers wait for it, and the job goes on."""
    if draft.gloo and (draft.mesh.sizes["pp"] > 1 or draft.plan.handover):
        return None
    rank = draft.some_rank()
    program, begins = draft.programs[rank], draft.begins[rank]
    step_ns = sum(i.gpu_ns for i in program[: begins[1]] if isinstance(i, Compute))
    late_ns = max(400 * _MS, int(step_ns * draft.choice.uniform(0.3, 0.8)))
    for begin in reversed(begins):
        program.insert(begin, Compute(late_ns, 0))
    world = draft.mesh.of_rank[rank][WORLD]
    count = sum(isinstance(i, Collective) and i.group is world for i in program)
    return Injection(
        (rank,),
        ("straggler", "slow-rank-before-collective", "input-bound", "thermal-or-power-throttle"),
        f"Rank {rank} comes {late_ns / 1e6:.0f} ms late in every step.",
        hangs=False,
        shown=FaultSigns(world.index, frozenset(range(1, count + 1)), enough=8),
    )
