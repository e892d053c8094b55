"""Waits that a program makes itself: handles made elsewhere, keys of the store, polls, locks on files."""

from __future__ import annotations

import pytest
from rank_threads import C10D, LIBRARY, Ranks

from ddx_tools.diagnosis.waits import doing_of
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.parsers.machine.file_locks import parse_file_locks

RING = """\
def run(rank, world, works):
    for work in works:
        work.wait()
    dist.all_reduce(loss)
def post(rank, world):
    return [dist.isend(x, (rank + 1) % world), dist.irecv(y, (rank - 1) % world)]
"""
LOOP = """\
def run(rank, world, works):
    while works:
        works.pop().wait()
        dist.all_reduce(loss)
def post(rank, world):
    return [dist.isend(x, (rank + 1) % world), dist.irecv(y, (rank - 1) % world)]
"""
STORE = "def run(store):\n    store.wait(names)\n    dist.all_reduce(loss)\n"
POLL = "def run(path):\n    while not path.exists():\n        time.sleep(0.1)\n    load()\n"
ONCE = "def run(path):\n    if not path.exists():\n        time.sleep(0.1)\n    load()\n"
LOCK = "def run(file):\n    fcntl.flock(file, fcntl.LOCK_EX)\n    dist.all_reduce(loss)\n    time.sleep(3600)\n"
EXTRA = """\
def run(rank, plan):
    if rank == 3:
        dist.barrier(group=cross)
    dist.broadcast(plan, src=0, group=low)
    dist.all_reduce(loss)
"""
OTHER_BRANCH = EXTRA.replace("    dist.broadcast(plan", "    else:\n        dist.broadcast(plan")
FETCH = ("_next_data", f"{LIBRARY}/site-packages/torch/utils/data/dataloader.py")
ALL_REDUCE = ("all_reduce", C10D)
ASLEEP = "hrtimer_nanosleep"
GONE = Finding(code="rank.process_gone", severity=Severity.FAILURE, ranks=[3], summary="Rank 3 has no live process.")


def _ring(program: str, behind: int) -> Ranks:
    """Four ranks that exchange with their neighbours; rank 0 is in the collective at a line behind that."""
    ranks = Ranks(program).thread(0, behind, ALL_REDUCE)
    for rank in (1, 2, 3):
        ranks.thread(rank, 3)
    return ranks


def test_of_neighbours_that_wait_for_each_other_the_one_in_every_pair_is_the_root() -> None:
    waits = _ring(RING, 4).waits()
    assert waits.roots.clear and waits.roots.ranks == (2,) and waits.roots.victims == (0, 1, 3)


def test_a_rank_that_may_not_have_come_to_the_exchange_yet_leaves_it_open_who_of_them_it_is() -> None:
    waits = _ring(LOOP, 4).waits()
    assert waits.suspects == () and waits.roots.open


def test_a_wait_for_a_handle_is_none_for_a_transfer_where_collectives_are_made_beside() -> None:
    waits = _ring(RING + "def start():\n    return dist.all_gather(a, b, async_op=True)\n", 4).waits()
    assert {operation.words.partition(" ")[0] for operation in waits.graph.operations.values()} == {
        "all_reduce",
        "wait",
    }


def test_who_left_out_the_key_of_a_store_that_its_peers_wait_for_is_the_root() -> None:
    ranks = Ranks(STORE)
    for rank in range(4):
        ranks.thread(rank, 3, ALL_REDUCE) if rank == 2 else ranks.thread(rank, 2)
    assert ranks.waits().roots.ranks == (2,)


def test_where_all_ranks_wait_for_keys_nobody_is_to_blame() -> None:
    ranks = Ranks(STORE)
    for rank in range(4):
        ranks.thread(rank, 2)
    assert ranks.waits().roots.ranks == ()


def _polling(program: str, *, last: int = 3) -> Ranks:
    ranks = Ranks(program).sleep_in(ASLEEP, 0, 1, 2)
    for rank in range(last):
        ranks.thread(rank, 3)
    return ranks


def test_ranks_that_poll_wait_for_the_one_that_ended() -> None:
    waits = _polling(POLL).waits(GONE)
    assert waits.roots.ranks == (3,) and waits.roots.victims == (0, 1, 2)
    assert "ranks 0-2 wait in a polling loop" in waits.chain[0].lower() and "job.py:3 run" in waits.chain[0]


def test_ranks_that_poll_wait_for_the_one_that_stands_still() -> None:
    waits = _polling(POLL).thread(3, 4).waits()
    assert waits.roots.ranks == (3,) and waits.roots.victims == (0, 1, 2)


@pytest.mark.parametrize("program", [ONCE, POLL])
def test_a_sleep_that_nothing_repeats_and_a_peer_that_works_are_no_waits(program: str) -> None:
    ranks = _polling(program).thread(3, 4, name="MainThread")
    if program == POLL:
        ranks.wakes["MainThread"] = 20
    assert ranks.waits().suspects == ()


def _locking(holder_line: int) -> Ranks:
    ranks = Ranks(LOCK).lock_file(1, 0).thread(1, 2)
    for rank in (2, 3):
        ranks.thread(rank, 3, ALL_REDUCE)
    if holder_line == 4:
        return ranks.sleep_in(ASLEEP, 0).thread(0, 4)
    return ranks.thread(0, 3, ALL_REDUCE)


def test_who_holds_a_file_that_a_peer_wants_to_lock_is_the_root() -> None:
    waits = _locking(4).waits()
    assert waits.roots.ranks == (0,) and waits.roots.victims == (1, 2, 3)


def test_a_holder_that_waits_for_who_wants_the_lock_is_the_root_of_the_circle() -> None:
    waits = _locking(3).lock_file(2, 0).waits()
    assert waits.roots.ranks == (0,) and waits.roots.victims == (1, 2, 3)
    assert doing_of(waits.graph, [0, 1]) == (
        "are in all_reduce at job.py:3 run and waiting for a lock on a file at job.py:2 run, which rank 0 holds"
    )


PIPELINE = """\
def run(rank, steps):
    for step in range(steps):
        dist.recv(x, src=rank - 1)
        dist.recv(gradient, src=rank + 1)
    dist.all_reduce(loss)
"""


def _pipeline(*behind: int) -> Ranks:
    """Four stages: the last waits for an activation, the others for gradients, some are through."""
    ranks = Ranks(PIPELINE)
    for rank in range(4):
        call, line = (ALL_REDUCE, 5) if rank in behind else (("recv", C10D), 3 if rank == 3 else 4)
        ranks.thread(rank, line, call)
    return ranks


def test_the_stage_that_left_the_exchange_all_others_are_in_is_the_root() -> None:
    waits = _pipeline(2).waits()
    assert waits.roots.clear and waits.roots.ranks == (2,) and waits.roots.victims == (0, 1, 3)


def test_where_as_many_stages_left_an_exchange_as_are_in_it_nobody_is_singled_out() -> None:
    waits = _pipeline(0, 2).waits()
    assert waits.suspects == ()


IN_ROUNDS = """\
def run(rank, world, steps):
    for step in range(steps):
        handle = dist.irecv(y, (rank - 1) % world)
        works.append(dist.all_reduce(norm, async_op=True))
        handle.wait()
        {way}dist.all_reduce(loss)
"""


@pytest.mark.parametrize(("way", "roots"), [("", (2,)), ("if step % 2: ", ())])
def test_who_waits_behind_a_transfer_of_the_same_round_has_left_it_out(way: str, roots: tuple[int, ...]) -> None:
    """With a condition before the collective, who is in it may be a round behind, and still come to the transfer."""
    ranks = Ranks(IN_ROUNDS.format(way=way)).thread(3, 5)
    for rank in range(3):
        ranks.thread(rank, 6, ALL_REDUCE)
    waits = ranks.waits()
    assert waits.roots.ranks == roots and waits.roots.clear == bool(roots)


STAGES = """\
def run(rank, world, steps):
    for step in range(steps):
        if rank < world - 1:
            dist.recv(gradient, rank + 1)
        dist.all_reduce(loss)
"""


def test_stages_held_up_by_the_next_lead_to_the_one_that_did_not_send() -> None:
    ranks = Ranks(STAGES).thread(0, 4, ("recv", C10D)).thread(1, 4, ("recv", C10D))
    waits = ranks.thread(2, 5, ALL_REDUCE).thread(3, 5, ALL_REDUCE).waits()
    assert waits.roots.clear and waits.roots.ranks == (2,) and waits.roots.victims == (0, 1, 3)


def test_locks_of_a_host_are_read_with_who_waits_for_them() -> None:
    text = (
        "1: POSIX  ADVISORY  WRITE 812 00:19:991 0 EOF\n"
        "2: FLOCK  ADVISORY  WRITE 4711 fd:00:1312 0 EOF\n2: -> FLOCK  ADVISORY  WRITE 4712 fd:00:1312 0 EOF\n"
        "2: -> FLOCK  ADVISORY  WRITE 0 fd:00:1312 0 EOF\n3: -> FLOCK  ADVISORY  WRITE 9 fd:00:1313 0 EOF\nrubbish\n"
    )
    (wait,) = parse_file_locks(text)
    assert (wait.waiter_pid, wait.holder_pid, wait.file, wait.line) == (4712, 4711, "fd:00:1312", 3)


def _two_that_wait_for_one(program: str, broadcast: int) -> Ranks:
    """Of eight ranks, rank 3 is in a barrier, two wait in a broadcast, and all others in the collective behind."""
    ranks = Ranks(program).thread(3, 3, ("barrier", C10D))
    for rank in (0, 1):
        ranks.thread(rank, broadcast, ("broadcast", C10D))
    for rank in (2, 4, 5, 6, 7):
        ranks.thread(rank, broadcast + 1, ALL_REDUCE)
    return ranks


def test_who_waits_where_another_would_come_by_itself_is_a_victim_of_that_one() -> None:
    assert _two_that_wait_for_one(EXTRA, 4).waits().roots.ranks == (3,)


def test_ranks_in_two_branches_that_do_not_lead_to_each_other_stay_together() -> None:
    assert _two_that_wait_for_one(OTHER_BRANCH, 5).waits().roots.ranks == (0, 1, 3)


@pytest.mark.parametrize(("apart_s", "roots"), [(8.0, []), (60.0, [2])])
def test_a_loader_whose_worker_sleeps_is_to_blame_only_when_it_has_slept_for_long(
    apart_s: float, roots: list[int]
) -> None:
    ranks = Ranks(STORE).loader_worker(2, 3)
    ranks.apart_s = apart_s
    for rank in range(4):
        ranks.thread(rank, 2, FETCH) if rank == 2 else ranks.thread(rank, 3, ALL_REDUCE)
    assert [rank for suspect in ranks.waits().suspects for rank in suspect.ranks] == roots
