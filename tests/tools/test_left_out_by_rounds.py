"""What the rounds before tell of two different calls under one number: who left out what (constructed records)."""

from __future__ import annotations

import pytest
from constructed_jobs import Job
from constructed_programs import Program

from ddx_tools.diagnosis.diagnose import diagnose
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.model.diagnosis import Diagnosis, Finding

pytestmark = pytest.mark.slow

Call = tuple[str, int]
ROUND: tuple[Call, ...] = (("all_reduce", 640), ("all_reduce", 96), ("broadcast", 1))


def job(ranks: int, odd: dict[int, Call], before: tuple[Call, ...], usual: Call) -> list[Finding]:
    """All make `before`; then some are in another call than all others, and nobody gets out. All from one line."""
    made = Job(ranks)
    group = made.group("0", range(ranks))
    for rank in range(ranks):
        for seq, (op, size) in enumerate((*before, odd.get(rank, usual)), 1):
            made.call(rank, group, seq, op, sizes=((size,),), line=41, done=seq <= len(before))
    return made.findings()


def mismatch(findings: list[Finding]) -> Finding:
    (found,) = (finding for finding in findings if finding.code == "collective.operation_mismatch")
    return found


def judged(findings: list[Finding]) -> Diagnosis:
    return diagnose(findings, load_playbooks())


def test_a_rank_that_goes_on_with_what_always_came_next_left_out_what_lies_between() -> None:
    findings = job(5, {3: ROUND[2]}, ROUND * 4, ROUND[0])
    found = mismatch(findings)
    assert (found.ranks, found.attributes["left_out"]) == ([3], True)
    assert found.attributes["left_out_calls"] == ["all_reduce at train.py:41 step"] * 2
    said = judged(findings)
    assert (said.causes[0].id, said.culprits.ranks) == ("rank-skipped-collective", [3])


@pytest.mark.parametrize(
    ("before", "why"),
    [
        (ROUND, "one round is no habit"),
        ((ROUND[0], ("barrier", 0)) * 4, "its call never came behind theirs"),
        ((*ROUND, ROUND[2]) * 3, "it came straight here before"),
        ((*ROUND, *ROUND[:2], *ROUND[:2], ROUND[2]) * 2, "their call came again before its own"),
    ],
)
def test_another_call_where_the_rounds_tell_nothing_is_a_different_order(before: tuple[Call, ...], why: str) -> None:
    findings = job(5, {3: ROUND[2]}, before, ROUND[0])
    assert "left_out" not in mismatch(findings).attributes, why
    assert judged(findings).causes[0].id == "collective-order-mismatch"


@pytest.mark.parametrize("odd", [0, 1])
def test_of_two_ranks_the_rounds_name_the_one_that_did_not_keep_to_them(odd: int) -> None:
    found = mismatch(job(2, {odd: ROUND[2]}, ROUND * 3, ROUND[0]))
    assert (found.ranks, found.attributes["tie"]) == ([odd], False)
    assert (found.attributes["operation"], found.attributes["peer_operation"]) == ("broadcast", "all_reduce")


def test_of_two_ranks_in_calls_that_are_both_new_nobody_is_named() -> None:
    found = mismatch(job(2, {1: ("gather", 3)}, ROUND * 3, ("barrier", 0)))
    assert (found.ranks, found.attributes["tie"]) == ([0, 1], True)


GUARDED = """\
def train(job):
    for step, batch in enumerate(job.batches):
        if finite(batch.loss):
            dist.all_reduce(job.grads)
        if step % 20 == 0:
            for held_out in job.held_out:
                dist.all_gather(job.parts, held_out)
"""


@pytest.mark.parametrize("evaluated", [False, True])
def test_a_loop_that_no_peer_has_been_in_has_no_turn_more(evaluated: bool) -> None:
    """The stacks leave open whether rank 2 left the sum out, or is in one more turn; the records may tell."""
    program, made = Program(GUARDED), Job(4)
    group = made.group("0", range(4))
    for rank in range(4):
        odd = rank == 2
        program.rank(rank, *(("all_gather", "dist.all_gather") if odd else ("all_reduce", "dist.all_reduce")))
        calls = [("all_reduce", 4), *([("all_gather", 7)] * evaluated), ("all_gather", 7) if odd else ("all_reduce", 4)]
        for seq, (op, line) in enumerate(calls, 1):
            made.call(rank, group, seq, op, line=line, done=seq < len(calls))
    records = made.findings()
    assert mismatch(records).attributes["peers_called"] is evaluated
    said = judged(program.findings() + records)
    assert (said.verdict == "diagnosed") is not evaluated
    assert said.causes[0].id == "rank-skipped-collective"
