"""Whom sends and receives of a program are for, by its text and the rank that runs it."""

from __future__ import annotations

import textwrap

import pytest

from ddx_tools.analysis.program.python_source import PythonSource
from ddx_tools.analysis.program.transfer_peers import peers_of

SETUP = "import os\nimport torch.distributed as dist\n"


def peers(program: str, rank: int = 2, operation: str = "recv", world: int = 4) -> set[int]:
    """Of the line marked HERE (and of its callers, marked FROM, outermost first)."""
    text = SETUP + textwrap.dedent(program)
    lines = text.split("\n")
    marked = [(number, line) for mark in ("FROM", "HERE") for number, line in enumerate(lines, 1) if mark in line]
    stack = [("job.py", number, "f") for number, _ in marked]
    return set(peers_of(lambda _: PythonSource(text), stack, operation, rank, world))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0", {0}),
        ("rank - 1", {1}),
        ("(rank + 1) % world_size", {3}),
        ("(dist.get_rank() + 2) % dist.get_world_size()", {0}),
        ("rank ^ 1", {3}),
        ("int(os.environ['RANK']) - 1", {1}),
        ("0 if rank == 2 else 1", {0}),
        ("peer", set()),
        ("dist.get_rank(group) - 1", set()),
        ("choose()", set()),
    ],
)
def test_the_peer_of_a_call_is_worked_out_for_the_rank_that_makes_it(expression: str, expected: set[int]) -> None:
    program = f"""
    def run(rank, world_size, peer, group):
        dist.recv(x, src={expression})  # HERE
    """
    assert peers(program) == expected


def test_names_are_followed_through_assignments_callers_and_attributes() -> None:
    program = """
    class Stage:
        def __init__(self, rank):
            self.rank = rank
            self.before = self.rank - 1

        def take(self, x, source):
            dist.recv(x, source)  # HERE

        def forward(self, x):
            self.take(x, self.before)  # FROM
    """
    assert peers(program) == {1}


def test_a_table_of_the_program_is_looked_up() -> None:
    program = """
    PARTNER = {1: 2, 2: 1}
    def trade(x, peer):
        dist.send(x, peer)  # HERE
    def run(rank):
        if rank in PARTNER:
            trade(x, PARTNER[rank])  # FROM
    """
    assert [peers(program, rank, "send") for rank in (1, 2)] == [{2}, {1}]


def test_a_name_that_is_assigned_twice_is_not_known() -> None:
    program = """
    def run(rank):
        peer = rank - 1
        if rank % 3 == 0:
            peer = rank + 1
        dist.recv(x, peer)  # HERE
    """
    assert peers(program) == set()


def test_the_turns_of_a_loop_are_all_possible() -> None:
    program = """
    def run(rank, world_size):
        for peer in range(1, world_size):
            dist.recv(x, src=peer)  # HERE
    """
    assert peers(program, rank=0) == {1, 2, 3}


def test_a_handle_leads_to_the_transfer_that_it_is_of() -> None:
    program = """
    def run(rank, world_size):
        sent = dist.isend(x, (rank + 1) % world_size)
        got = dist.irecv(y, (rank - 1) % world_size)
        got.wait()  # HERE
    """
    assert peers(program, operation="wait") == {1}


def test_handles_in_a_list_may_be_of_any_transfer_that_the_rank_makes() -> None:
    program = """
    def run(rank, world_size):
        ops = []
        if rank > 0:
            ops.append(dist.P2POp(dist.irecv, y, rank - 1))
        if rank < world_size - 1:
            ops.append(dist.P2POp(dist.isend, x, rank + 1))
        for work in dist.batch_isend_irecv(ops):
            work.wait()  # HERE
    """
    assert peers(program, rank=3, operation="batch_isend_irecv") == {2}
    assert peers(program, rank=1, operation="batch_isend_irecv") == {0, 2}
