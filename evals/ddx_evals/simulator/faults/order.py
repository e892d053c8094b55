"""Collectives in a different order, with a different root, or with different splits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from ddx_evals.simulator.faults.draft import Draft, Injection, place
from ddx_evals.simulator.faults.mismatch import PAIR
from ddx_evals.simulator.training.calls import Calls
from ddx_evals.simulator.training.instructions import Collective, Compute

_LONGER_THAN_ANY_TIMEOUT = Compute(0, 6 * 3600 * 10**9)


def order_swapped(draft: Draft) -> Injection | None:
    """One rank calls two neighbouring collectives, of one group or of two, in swapped order."""
    rank = draft.some_rank()
    program = draft.programs[rank]
    places = list(draft.collectives(rank))
    pairs = [
        (i, first, j, second)
        for (i, first), (j, second) in pairwise(places)
        if not first.asynchronous and not second.asynchronous and _deadlock(first, second)
    ]
    if not pairs:
        return None
    across = [pair for pair in pairs if pair[1].group is not pair[3].group]
    i, first, j, second = draft.choice.choice(across if across and draft.choice.random() < 0.6 else pairs)
    program[i], program[j] = second, first
    smaller = min(first.group, second.group, key=lambda group: group.size)
    unclear = PAIR if smaller.size == 2 else ""
    if first.group is not second.group and not draft.timing and not draft.gloo:
        unclear = "Without timing, only the order of the records shows it."
    return Injection(
        (rank,),
        ("collective-order-mismatch", "rank-skipped-collective", "collective-shape-mismatch"),
        f"Rank {rank} calls {second.name} before {first.name}.",
        fair_undecided=unclear,
        by_records=True,
        group=smaller.name,
        place=place(second),
    )


def _deadlock(first: Collective, second: Collective) -> bool:
    """Whether a swap has an effect: different calls in one group, or two groups of which one contains the other."""
    if first.group is second.group:
        return first.agreement != second.agreement
    one, other = set(first.group.ranks), set(second.group.ranks)
    return one <= other or other <= one


def wrong_root(draft: Draft) -> Injection | None:
    """One rank uses a different root: a gather shows it, a broadcast does not."""
    rank = draft.some_rank()
    found = [(i, c) for i, c in draft.collectives(rank) if c.name in ("gather", "broadcast")]
    if not found or rank == 0:
        return None
    index, collective = draft.choice.choice(found)
    calls = Calls(draft.gloo)
    mine = collective.group.local[rank]
    if collective.name == "gather":
        wrong = calls.gather(collective.group, rank, (256,), mine, collective.frames)
    else:
        wrong = replace(collective, agreement=("root", mine))
    draft.programs[rank][index] = wrong
    gather = collective.name == "gather"
    return Injection(
        (rank,),
        ("wrong-process-group", "collective-order-mismatch", "collective-shape-mismatch", "rank-skipped-collective"),
        f"Rank {rank} acts as root of {collective.name}.",
        decided=gather,
        fair_undecided="Two ranks look like the root." if gather else "",
        by_records=True,
        group=collective.group.name,
        place=place(wrong),
    )


def wrong_splits(draft: Draft) -> Injection | None:
    """One rank's all_to_all splits do not pair up with its peers'."""
    rank = draft.some_rank()
    found = [(i, c) for i, c in draft.collectives(rank) if c.splits is not None]
    if not found:
        return None
    index, collective = draft.choice.choice(found)
    assert collective.splits is not None
    sent, received = collective.splits
    changed = tuple(rows + 64 * (1 + i) for i, rows in enumerate(sent))
    wrong = Calls(draft.gloo).all_to_all(
        collective.group, draft.plan.hidden, changed, received, collective.frames, "wrong splits"
    )
    draft.programs[rank][index] = wrong
    return Injection(
        (rank,),
        ("collective-shape-mismatch",),
        f"Rank {rank} sends other numbers of rows than its peers expect.",
        decided=draft.style.since("2.11"),
        fair_undecided=PAIR if collective.group.size == 2 else "",
        by_pairing=True,
        by_records=True,
        group=collective.group.name,
        place=place(wrong),
    )


def nobody_entered(draft: Draft) -> Injection | None:
    """All ranks compute for longer than the timeout; nothing that they enqueued after that has started anywhere."""
    step = draft.some_step()
    for program, begins in zip(draft.programs, draft.begins, strict=True):
        program.insert(begins[step], _LONGER_THAN_ANY_TIMEOUT)
    return Injection(
        (),
        ("timeout-too-short", "slow-rank-before-collective", "gpu-hung", "graph-recompile-divergence"),
        "Every GPU computes for longer than the timeout, which counts from when the CPU enqueued.",
        hangs=False,
        decided=False,
        by_timeout=True,
    )
