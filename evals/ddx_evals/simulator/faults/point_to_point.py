"""Sends and receives without a partner, or waiting for each other in a circle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ddx_evals.simulator.faults.draft import Draft, Injection
from ddx_evals.simulator.training.instructions import Instruction, Program, SimulatedTransfer
from ddx_evals.simulator.training.schedule import Training

_CAUSES = ("p2p-unmatched", "p2p-deadlock")
_TWO_SIDES = "A transfer has two ends: that one is missing does not say which of them is wrong."
_NOT_STARTED = "Without timing, a transfer that never started looks like one that never ended."
_CYCLE = ("p2p-deadlock", "p2p-unmatched")


def both_send_first(draft: Draft) -> Injection | None:
    """In a hand-over, the odd rank also sends first: both wait for the other's receive."""

    def change(program: Program, index: int) -> None:
        program[index], program[index + 1] = program[index + 1], program[index]

    return _at_handover(draft, odd=True, sends=False, change=change, both=True, causes=_CYCLE)


def missing_send(draft: Draft) -> Injection | None:
    """A rank skips a send; its peer waits in the receive."""
    return _at_handover(draft, odd=draft.choice.random() < 0.5, sends=True, change=_leave_out)


def missing_recv(draft: Draft) -> Injection | None:
    """A rank skips a receive; its peer waits in the send."""
    return _at_handover(draft, odd=draft.choice.random() < 0.5, sends=False, change=_leave_out)


def _leave_out(program: Program, index: int) -> None:
    del program[index]


def wrong_peer(draft: Draft) -> Injection | None:
    """A rank sends to a different rank from the one that waits for it."""

    def change(program: Program, index: int) -> None:
        transfer = program[index]
        assert isinstance(transfer, SimulatedTransfer)
        program[index] = replace(transfer, peer=(transfer.peer + 2) % (transfer.group.size // 2 * 2))

    if draft.mesh.sizes.get(draft.plan.handover, 0) < 4:
        return None
    found = _at_handover(draft, odd=False, sends=True, change=change)
    return found and replace(found, alternatives=(), fair_undecided="")


def stage_schedule_differs(draft: Draft) -> Injection | None:
    """One stage of one pipeline runs GPipe where the others run 1F1B."""
    rank, step = draft.some_rank(), draft.some_step()
    other = Training(draft.mesh, replace(draft.plan, one_forward_one_backward=False), gloo=False)
    written = other.write(rank, len(draft.begins[rank]))
    draft.programs[rank][draft.begins[rank][step] :] = written.program[written.begins[step] :]
    pipeline = draft.mesh.of_rank[rank]["pp"]
    mine = pipeline.local[rank]
    neighbours = [pipeline.ranks[i] for i in (mine - 1, mine + 1) if 0 <= i < pipeline.size]
    cycles = tuple(tuple(sorted((rank, other))) for other in neighbours)
    return Injection(
        (rank,),
        _CYCLE,
        f"Rank {rank} runs another pipeline schedule than its neighbours.",
        fair_undecided="Within one pipeline, each side waits for the other.",
        alternatives=(*cycles, tuple(sorted((rank, *neighbours)))),
        by_pairing=True,
        by_records=True,
        group=pipeline.name,
    )


def _at_handover(
    draft: Draft,
    *,
    odd: bool,
    sends: bool,
    change: Callable[[Program, int], None],
    both: bool = False,
    causes: tuple[str, ...] = _CAUSES,
) -> Injection | None:
    """Change one transfer of a hand-over on an odd or even member of the group."""
    rank = draft.some_rank()
    group = draft.mesh.of_rank[rank].get(draft.plan.handover)
    if group is None or group.local[rank] % 2 != odd or group.local[rank] ^ 1 >= group.size:
        return None
    program = draft.programs[rank]
    places = [
        index for index in range(len(program) // 2, len(program) * 9 // 10) if _is_handover(program[index], sends=sends)
    ]
    if not places:
        return None
    change(program, draft.choice.choice(places))
    peer = group.ranks[group.local[rank] ^ 1]
    pair = tuple(sorted((rank, peer)))
    return Injection(
        pair if both else (rank,),
        causes,
        f"Ranks {rank} and {peer} do not meet in a hand-over.",
        decided=not draft.gloo,
        fair_undecided=_TWO_SIDES if not both else "" if draft.timing else _NOT_STARTED,
        alternatives=() if both else (pair,),
        by_pairing=True,
        by_records=True,
        group=group.name,
        place="/srv/train/stats.py:66" if sends else "/srv/train/stats.py:68",
    )


def _is_handover(instruction: Instruction, *, sends: bool) -> bool:
    return (
        isinstance(instruction, SimulatedTransfer)
        and instruction.sends is sends
        and any(frame["name"] == "hand_over" for frame in instruction.frames)
    )
