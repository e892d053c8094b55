"""Ranks that stand in sends and receives: who waits for whom, as far as stacks and the program's text tell."""

from __future__ import annotations

import pytest
from constructed_programs import Program

from ddx_tools.analysis.program.peer_numbers import local_peers
from ddx_tools.analysis.program.python_source import PythonSource
from ddx_tools.model.diagnosis import Finding, Verdict

SHOW = """\
def train(job):
    for number in range(job.steps):
        job.schedule.step()
        show(job)
def show(job):
{body}
"""
ROLES = """\
    if job.rank in SENDERS:
        dist.send(job.norm, 0)
    elif job.rank == 0:
        dist.recv(job.norm, 2)"""
OWN_IFS = ROLES.replace("elif", "if")
TURNS = "    dist.send(job.norm, job.other)\n    dist.recv(job.theirs, job.other)"
ALONE = "    dist.send(job.norm, job.other)"
"""The other end stands elsewhere in the program."""


def staged(body: str, *senders: int, ranks: int = 6) -> Program:
    """Some ranks in the program's own send, all others in the schedule of a pipeline."""
    program = Program(SHOW.format(body=body))
    for rank in range(ranks):
        if rank in senders:
            program.rank(rank, "send", "show(job)", "dist.send")
        else:
            program.rank(rank, "_wait_batch_p2p", "job.schedule.step()", library="pipelining/schedules.py")
    return program


def one(findings: list[Finding], code: str) -> Finding:
    (found,) = (finding for finding in findings if finding.code == code)
    return found


@pytest.mark.parametrize("body", [ROLES, OWN_IFS])
@pytest.mark.parametrize("senders", [(4,), (2, 4)])
def test_a_send_whose_receive_is_another_ranks_branch_that_nobody_is_in_has_no_partner(
    body: str, senders: tuple[int, ...]
) -> None:
    program = staged(body, *senders)
    assert one(program.findings(), "p2p.unmatched").ranks == list(senders)
    said = program.diagnosis()
    assert (said.verdict, said.causes[0].id, said.culprits.ranks) == (
        Verdict.DIAGNOSED,
        "p2p-unmatched",
        list(senders),
    )


@pytest.mark.parametrize("body", [TURNS, ALONE])
def test_a_send_whose_partner_may_still_come_to_its_receive_is_no_proof(body: str) -> None:
    said = staged(body, 4).diagnosis()
    assert (said.verdict, {cause.id for cause in said.causes}) == (
        Verdict.UNDECIDED,
        {"p2p-unmatched", "p2p-deadlock"},
    )
    assert said.next_check and said.next_check.probe == "native_stacks"


def test_a_pipeline_whose_stages_all_exchange_is_a_circle() -> None:
    program = staged(ROLES)
    assert one(program.findings(), "p2p.circular_wait").attributes["everybody"] is True


def beside_collectives(body: str) -> Program:
    """Two ranks in a send, three in a collective."""
    program = Program(SHOW.format(body=body) + "def reduce(job):\n    dist.all_reduce(job.sums)\n")
    for rank in (1, 3):
        program.rank(rank, "send", "show(job)", "dist.send")
    for rank in (0, 2, 4):
        program.rank(rank, "all_reduce", "dist.all_reduce")
    return program


def test_two_that_trade_wait_for_each_other_and_two_that_report_to_a_third_do_not() -> None:
    assert beside_collectives(TURNS).diagnosis().causes[0].id == "p2p-deadlock"
    said = beside_collectives(ROLES).diagnosis()
    assert said.causes[0].id == "p2p-unmatched"
    assert said.culprits.ranks == [], "either they, or the one that should have received, went another way"


EXCHANGE = """\
def exchange(job):
    {first}
    dist.recv(job.theirs, job.there)
    {last}
"""
SEND = "dist.{}(job.ours, job.here)"


@pytest.mark.parametrize(
    ("first", "last", "verdict", "cause"),
    [
        ("job.ready()", SEND.format("send"), Verdict.DIAGNOSED, "p2p-deadlock"),
        (SEND.format("isend"), "job.done()", Verdict.UNDECIDED, "p2p-unmatched"),
        (SEND.format("send"), "job.done()", Verdict.UNDECIDED, "p2p-unmatched"),
        ("if job.late: " + SEND.format("send"), SEND.format("send"), Verdict.DIAGNOSED, "p2p-deadlock"),
    ],
    ids=["all receive first", "all have posted their sends", "all have sent", "few have sent"],
)
def test_the_order_of_calls_explains_no_wait_of_ranks_that_have_sent(
    first: str, last: str, verdict: Verdict, cause: str
) -> None:
    program = Program(EXCHANGE.format(first=first, last=last))
    for rank in range(4):
        program.rank(rank, "recv", "dist.recv")
    said = program.diagnosis()
    assert (said.verdict, said.causes[0].id) == (verdict, cause)


def test_transfers_that_were_all_posted_do_not_fit_together() -> None:
    program = Program(RING.format(peer="(place + 2) % size"))
    for rank in range(4):
        program.rank(rank, "", "work.wait()")
    said = program.diagnosis()
    assert (said.verdict, said.causes[0].id) == (Verdict.UNDECIDED, "p2p-unmatched")
    assert said.next_check and "p2p-unmatched" in said.next_check.separates


def test_whether_two_senders_wait_for_each_other_is_open_without_the_other_end() -> None:
    said = beside_collectives(ALONE).diagnosis()
    assert said.verdict is Verdict.UNDECIDED
    assert {"p2p-deadlock", "p2p-unmatched"} <= {cause.id for cause in said.causes}


# --- a number within a group in place of the rank

RING = """\
def turn(part, ring):
    place, size = dist.get_rank(ring), dist.get_world_size(ring)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, part, {peer})])
    for work in works:
        work.wait()
def reduce(job):
    dist.all_reduce(job.sums)
"""


def rings(peer: str, *through: int, ranks: int = 8) -> Program:
    """Some are past the turn and wait in a collective, all others wait in it."""
    program = Program(RING.format(peer=peer))
    for rank in range(ranks):
        if rank in through:
            program.rank(rank, "all_reduce", "dist.all_reduce")
        else:
            program.rank(rank, "", "work.wait()")
    return program


def test_ranks_of_all_groups_but_the_first_wait_where_a_number_within_the_group_is_the_peer() -> None:
    program = rings("(place + 1) % size", 0, 1)
    found = one(program.findings(), "p2p.numbered_within_group")
    assert (found.ranks, found.attributes["expression"]) == ([2, 3, 4, 5, 6, 7], "(place + 1) % size")
    said = program.diagnosis()
    assert (said.verdict, said.causes[0].id, said.culprits.ranks) == (
        Verdict.DIAGNOSED,
        "wrong-process-group",
        [2, 3, 4, 5, 6, 7],
    )


@pytest.mark.parametrize("through", [(0,), (1, 2), (0, 1, 2)])
def test_ranks_that_are_no_whole_group_do_not_show_whose_numbers_are_meant(through: tuple[int, ...]) -> None:
    said = rings("(place + 1) % size", *through).diagnosis()
    assert said.verdict is Verdict.UNDECIDED or said.causes[0].id != "wrong-process-group"


def test_the_waits_of_a_function_that_only_sends_and_receives_are_transfers() -> None:
    (waits,) = {
        str(finding.attributes["kind"])
        for finding in rings("job.peer", 0, 1).findings()
        if finding.code == "collective.peers_wait" and 5 in finding.ranks
    }
    assert waits == "p2p"


@pytest.mark.parametrize(
    ("text", "expressions"),
    [
        ("rank = dist.get_rank(g)\n    dist.send(x, (rank + 1) % 4)", ["(rank + 1) % 4"]),
        ("me = mesh.get_local_rank('dp')\n    right = me + 1\n    dist.isend(x, dst=right)", ["right"]),
        ("dist.broadcast(x, src=dist.get_rank(g), group=g)", ["dist.get_rank(g)"]),
        ("rank = dist.get_rank()\n    dist.send(x, (rank + 1) % 4)", []),
        ("rank = dist.get_rank(g)\n    dist.send(x, first + (rank + 1) % 4)", []),
        ("rank = dist.get_rank(g)\n    dist.send(x, dist.get_global_rank(g, (rank + 1) % 4))", []),
        ("rank = dist.get_rank(g)\n    dist.send(x, group=g, group_dst=(rank + 1) % 4)", []),
        ("rank = dist.get_rank(g)\n    dist.send(x, ranks[rank + 1])", []),
    ],
)
def test_numbers_that_stay_within_a_group(text: str, expressions: list[str]) -> None:
    source = PythonSource(f"def turn(x, g):\n    {text}\n")
    function = source.function(2)
    assert function is not None
    assert [peer.expression for peer in local_peers(function)] == expressions


def test_expressions_too_deep_to_follow_say_nothing() -> None:
    deep = " + ".join(["1"] * 900)
    source = PythonSource(f"def turn(x, g):\n    rank = dist.get_rank(g)\n    dist.send(x, rank + {deep})\n")
    function = source.function(2)
    assert function is None or local_peers(function) == []


def test_without_the_programs_text_two_that_send_need_not_trade() -> None:
    program = beside_collectives(TURNS)
    program.raw.items = [item for item in program.raw.items if item.kind != "source"]
    assert program.diagnosis().verdict is Verdict.UNDECIDED
