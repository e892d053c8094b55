"""Ranks that disagree about a collective of their group: another operation, other sizes, one more or one less."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ddx_evals.simulator.faults.draft import Draft, Injection, place
from ddx_evals.simulator.training.call_paths import MAIN, api, stack, user
from ddx_evals.simulator.training.calls import Calls
from ddx_evals.simulator.training.instructions import Collective, Instruction

PAIR = "The group has two members: the records alone do not show which of them is the odd one."


def wrong_operation(draft: Draft) -> Injection | None:
    """One rank calls a different collective from its peers."""
    found = _some_collective(draft)
    if found is None:
        return None
    rank, index, collective = found
    line = (user("train_step", "train.py", 233), *MAIN)
    calls = Calls(draft.gloo)
    if collective.name == "broadcast":
        other = calls.all_reduce(collective.group, (draft.plan.hidden,), stack(*api("all_reduce"), *line))
    else:
        shape = tuple(_first_shape(collective))
        other = calls.broadcast(collective.group, shape, 0, stack(*api("broadcast"), *line))
    draft.programs[rank][index] = other
    return _mismatch(
        rank,
        other,
        ("collective-order-mismatch", "rank-skipped-collective"),
        f"Rank {rank} calls {other.name} where its peers call {collective.name}.",
    )


def wrong_shape(draft: Draft) -> Injection | None:
    """One rank's tensor has a different size."""
    found = _some_collective(draft, lambda c: bool(c.inputs) and c.name not in ("all_to_all", "gather"))
    if found is None:
        return None
    rank, index, collective = found
    smaller = replace(
        collective,
        inputs=[_shorter(shape) for shape in collective.inputs],
        outputs=[_shorter(shape) for shape in collective.outputs],
        agreement=("smaller", collective.agreement),
    )
    draft.programs[rank][index] = smaller
    return _mismatch(
        rank, smaller, ("collective-shape-mismatch",), f"Rank {rank} passes a smaller tensor to {collective.name}."
    )


def skipped_collective(draft: Draft) -> Injection | None:
    """One rank skips one or two collectives of a group; its later ones pair with its peers' earlier ones."""
    found = _some_collective(draft)
    if found is None:
        return None
    rank, index, collective = found
    program = draft.programs[rank]
    del program[index]
    if draft.choice.random() < 0.4:
        following = _next_of_group(program, index, collective)
        if following is not None:
            del program[following]
    return _mismatch(
        rank,
        collective,
        (
            "rank-skipped-collective",
            "module-skipped-on-rank",
            "collective-order-mismatch",
            "collective-shape-mismatch",
            "slow-rank-before-collective",
            "uneven-data",
        ),
        f"Rank {rank} leaves out {collective.name}.",
    )


def extra_collective(draft: Draft) -> Injection | None:
    """One rank calls one extra collective, from its own line."""
    found = _some_collective(draft)
    if found is None:
        return None
    rank, index, collective = found
    line = (user("evaluate", "evaluate.py", 41), *MAIN)
    if draft.choice.random() < 0.5:
        extra = replace(collective, frames=stack(*api("all_reduce"), *line), asynchronous=False)
    else:
        extra = Calls(draft.gloo).all_reduce(collective.group, (16,), stack(*api("all_reduce"), *line), "Float")
    draft.programs[rank].insert(index, extra)
    causes = ("collective-order-mismatch", "rank0-only-work-with-collective", "collective-shape-mismatch")
    return _mismatch(
        rank, extra, (*causes, "rank-skipped-collective"), f"Rank {rank} calls {extra.name} once more than its peers."
    )


def _mismatch(rank: int, collective: Collective, causes: tuple[str, ...], note: str) -> Injection:
    return Injection(
        (rank,),
        causes,
        note,
        fair_undecided=PAIR if collective.group.size == 2 else "",
        by_records=True,
        group=collective.group.name,
        place=place(collective),
    )


def _some_collective(
    draft: Draft, suits: Callable[[Collective], bool] = lambda _: True
) -> tuple[int, int, Collective] | None:
    rank = draft.some_rank()
    places = [(index, c) for index, c in draft.collectives(rank) if suits(c)]
    if not places:
        return None
    larger = [(index, c) for index, c in places if c.group.size > 2]
    index, collective = draft.choice.choice(larger if larger and draft.choice.random() < 0.8 else places)
    return rank, index, collective


def _next_of_group(program: list[Instruction], index: int, like: Collective) -> int | None:
    for i in range(index, len(program)):
        instruction = program[i]
        if isinstance(instruction, Collective) and instruction.group is like.group:
            return i
    return None


def _first_shape(collective: Collective) -> list[int]:
    shapes = collective.inputs or collective.outputs or [[1]]
    shape = shapes[0]
    assert isinstance(shape, list)
    return shape


def _shorter(shape: object) -> list[int]:
    assert isinstance(shape, list)
    return [max(1, shape[0] * 3 // 4), *shape[1:]] if shape[0] > 1 else [2, *shape[1:]]
