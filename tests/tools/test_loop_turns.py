"""Ranks of which one is in a loop and the other behind it: who had more turns, and where that cannot be told."""

from __future__ import annotations

import pytest
from constructed_programs import Program

from ddx_tools.model import Verdict

ROUNDS = """\
def train(job):
    for number, batch in enumerate(job.epochs):
        turns(job)
        if number % 2 == 0:
            evaluate(job)
def turns(job):
    for batch in job.batches:
        dist.all_reduce(job.sums)
def evaluate(job):
    dist.all_gather(job.parts, job.own)
"""


def test_one_more_turn_of_a_loop_may_look_like_a_call_that_was_left_out() -> None:
    """Its data may be longer: the loop turns as often as there are batches."""
    program = Program(ROUNDS)
    for rank in (0, 1, 3):
        program.rank(rank, "all_gather", "evaluate(job)", "dist.all_gather")
    found = program.rank(2, "all_reduce", "turns(job)", "dist.all_reduce").mismatch()
    assert (found.ranks, found.attributes["in_turns"]) == ([2], True)
    assert program.diagnosis().verdict is Verdict.UNDECIDED


def test_turns_of_a_loop_in_a_forward_pass_are_layers_of_which_no_rank_has_more() -> None:
    program = Program(
        "def train(job):\n    for batch in job.batches:\n        forward(batch)\n        if len(batch) == 8:\n"
        "            dist.all_gather(job.parts, job.own)\n"
        "def forward(batch):\n    for layer in batch.layers:\n        dist.all_reduce(layer.sums)\n"
    )
    for rank in (0, 1, 3):
        program.rank(rank, "all_gather", "dist.all_gather")
    found = program.rank(2, "all_reduce", "forward(batch)", "dist.all_reduce").mismatch()
    assert (found.ranks, found.attributes["in_turns"], found.attributes["left_out"]) == ([2], False, True)
    assert (program.diagnosis().verdict, program.diagnosis().causes[0].id) == ("diagnosed", "rank-skipped-collective")


EVALUATED = """\
def train(job):
    for step, batch in enumerate(job.batches):
        if step % 20 == 0:
            evaluate(job)
            dist.barrier()
def evaluate(job):
    for batch in job.held_out:
        dist.all_gather(batch.parts, batch.own)
"""


@pytest.mark.parametrize(("behind", "turns"), [([2], "fewer"), ([0, 1, 3], "more")])
def test_who_is_through_with_a_loop_that_nobody_can_leave_had_fewer_turns(behind: list[int], turns: str) -> None:
    program = Program(EVALUATED)
    for rank in range(4):
        if rank in behind:
            program.rank(rank, "barrier", "dist.barrier")
        else:
            program.rank(rank, "all_gather", "evaluate(job)", "dist.all_gather")
    found = program.mismatch()
    assert (found.ranks, found.attributes["turns"]) == ([2], turns)
    said = program.diagnosis()
    assert (said.verdict, said.causes[0].id, said.culprits.ranks) == ("diagnosed", "uneven-data", [2])


def test_a_loop_that_can_be_left_earlier_says_nothing_of_turns() -> None:
    program = Program(
        EVALUATED.replace(
            "        dist.all_gather", "        if batch.bad:\n            break\n        dist.all_gather"
        )
    )
    for rank in (0, 1, 3):
        program.rank(rank, "all_gather", "evaluate(job)", "dist.all_gather")
    assert program.rank(2, "barrier", "dist.barrier").mismatch().attributes.get("turns") is None
