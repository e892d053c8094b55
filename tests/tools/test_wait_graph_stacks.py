"""What threads wait for, by stacks alone: of their own process and of peers. Constructed, but for the recorded jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_threads import BASE, C10D, FUTURES, QUEUE, SOCKET, THREADING, Ranks

from ddx_tools.analysis.wait_graph.model import EdgeKind, Sure
from ddx_tools.investigation.lookup import look
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Certainty, SuspectEvent, Verdict
from ddx_tools.model.errors import UsageError

pytestmark = pytest.mark.slow

LIVE = Path(__file__).parents[1] / "fixtures/wait_graph/live"
BARRIER = ("barrier", C10D)
BACKWARD = ("all_reduce", C10D)
WAYS = {
    "join": ([("join", THREADING), ("_wait_for_tstate_lock", THREADING)], EdgeKind.JOIN),
    "event": ([("wait", THREADING), ("wait", THREADING)], EdgeKind.LOCK),
    "queue": ([("get", QUEUE), ("wait", THREADING)], EdgeKind.QUEUE),
    "future": ([("result", BASE), ("wait", THREADING)], EdgeKind.QUEUE),
}


def _saver(way: str, *, skips: bool) -> Ranks:
    """Four ranks whose main threads wait for a thread that is in a barrier; rank 2 is elsewhere if it skips that."""
    calls, _ = WAYS[way]
    ranks = Ranks()
    for rank in range(4):
        if skips and rank == 2:
            ranks.thread(rank, 20, BACKWARD)
        else:
            ranks.thread(rank, 10, *calls).thread(rank, 30, BARRIER, name="saver")
    return ranks


@pytest.mark.parametrize("way", WAYS)
def test_a_main_thread_that_waits_for_a_thread_waits_for_whom_that_waits_for(way: str) -> None:
    waits = _saver(way, skips=True).waits()
    assert waits.roots.clear and waits.roots.ranks == (2,) and waits.roots.victims == (0, 1, 3)
    within = {edge.kind for edge in waits.graph.edges if edge.waiter.rank == edge.awaited.rank}
    assert within == {WAYS[way][1]}


@pytest.mark.parametrize("way", WAYS)
def test_where_the_threads_of_all_ranks_are_in_the_barrier_nobody_is_to_blame(way: str) -> None:
    waits = _saver(way, skips=False).waits()
    assert waits.roots.ranks == () and waits.suspects == ()


def test_a_barrier_that_threads_got_out_of_between_two_looks_is_no_wait() -> None:
    waits = _saver("join", skips=True).wake("saver").waits()
    assert 2 not in waits.roots.ranks and waits.suspects == ()


def _uploader(apart_s: float) -> Ranks:
    """Rank 1 joins its thread, which sends to a socket; its peers reduce."""
    ranks = Ranks()
    ranks.apart_s = apart_s
    for rank in range(4):
        ranks.thread(rank, 10, *WAYS["join"][0]) if rank == 1 else ranks.thread(rank, 20, BACKWARD)
    return ranks.thread(1, 30, name="upload").sleep_in("wait_woken", 1)


def test_a_rank_whose_thread_gets_on_with_a_transfer_is_at_work() -> None:
    """The kernel wakes the sending thread whenever there is room; it does not wake one that is stuck."""
    sending = _uploader(20.0).wake("upload").waits()
    assert [(one.ranks, one.certainty) for one in sending.suspects] == [([1], Certainty.LIKELY)]
    stuck = _uploader(20.0).waits()
    assert [(one.ranks, one.certainty) for one in stuck.suspects] == [([1], Certainty.SEEN)]


def test_a_rank_at_work_whose_peers_have_waited_for_seconds_is_no_suspect_yet() -> None:
    brief = _uploader(5.0).wake("upload").waits()
    assert (brief.roots.ranks, brief.suspects, brief.brief_s) == ((1,), (), 5.0)
    assert [one.ranks for one in _uploader(5.0).waits().suspects] == [[1]]


def _in_native_code(*ranks: int) -> Ranks:
    """Ranks in their own lines of a native library, and peers in a reduction."""
    found = Ranks()
    for rank in range(4):
        found.thread(rank, 10) if rank in ranks else found.thread(rank, 20, BACKWARD)
    return found.sleep_in("eventfd_read", *ranks)


def test_a_main_thread_that_is_blocked_with_the_gil_keeps_all_others_from_running() -> None:
    (kept,) = _in_native_code(1).keep_the_lock(1).waits().suspects
    assert (kept.ranks, kept.says.partition(";")[0]) == ([1], "Rank 1 is blocked at job.py:10 run and keeps the GIL")


def test_a_main_thread_keeps_nobody_if_it_gave_the_gil_back_or_is_woken_or_others_do_the_same() -> None:
    """A slow call wakes up; ranks in a native exchange wait for each other."""
    for ranks in (
        _in_native_code(1),
        _in_native_code(1).keep_the_lock(1).wake("MainThread"),
        _in_native_code(1, 2).keep_the_lock(1, 2),
    ):
        assert not any("GIL" in one.says for one in ranks.waits().suspects)


def test_of_several_threads_the_one_that_waits_for_peers_is_awaited_and_helpers_are_not() -> None:
    ranks = Ranks()
    for rank in range(4):
        if rank == 2:
            ranks.thread(rank, 20, BACKWARD)
            continue
        ranks.thread(rank, 10, *WAYS["join"][0]).thread(rank, 30, BARRIER, name="saver")
        ranks.thread(rank, 0, ("_worker", FUTURES), ("get", QUEUE), name="pool")
    assert ranks.waits().roots.ranks == (2,)


def test_who_waits_for_a_lock_that_no_thread_could_release_is_the_root() -> None:
    ranks = Ranks()
    for rank in range(4):
        ranks.thread(rank, 10, ("acquire", THREADING)) if rank == 1 else ranks.thread(rank, 20, BACKWARD)
    ranks.thread(1, 0, ("_worker", FUTURES), ("get", QUEUE), name="pool")
    assert ranks.waits().roots.ranks == (1,)


def test_where_a_thread_of_the_rank_itself_holds_it_up_the_answer_says_what_that_thread_does() -> None:
    ranks = Ranks()
    for rank in range(4):
        if rank == 2:
            ranks.thread(rank, 10, *WAYS["queue"][0]).thread(rank, 33, ("readinto", SOCKET), name="producer")
        else:
            ranks.thread(rank, 20, BACKWARD)
    waits = ranks.waits()
    (suspect,) = waits.suspects
    assert (suspect.ranks, suspect.event) == ([2], SuspectEvent.OUTSIDE)
    assert [place.line for place in suspect.locations] == [33, 10]
    assert (
        "Rank 2" in suspect.says
        and "waits at job.py:10 run for its thread producer, which is waiting on a socket at job.py:33" in suspect.says
    )
    assert "ranks 0-1, 3 wait for it in all_reduce" in suspect.says


def test_a_stopped_rank_waits_for_nobody_whatever_it_is_in() -> None:
    ranks = Ranks()
    for rank in range(4):
        ranks.thread(rank, 20, BACKWARD)
    assert ranks.stop(3).waits().roots.ranks == (3,)


def test_who_receives_waits_for_the_peer_that_its_local_variables_name() -> None:
    ranks = Ranks().thread(0, 12, ("recv", C10D), src=1, group=None)
    ranks.thread(1, 20, ("sleep", "/v/lib/python3.11/site-packages/x/y.py")).thread(2, 12, ("recv", C10D), src=0)
    waits = ranks.waits()
    assert waits.roots.ranks == (1,)
    assert {edge.certainty for edge in waits.graph.edges if edge.kind is EdgeKind.TRANSFER} == {Sure.SEEN}


def test_without_local_variables_nobody_knows_whom_a_receive_waits_for() -> None:
    ranks = Ranks().thread(0, 12, ("recv", C10D)).thread(1, 13, ("recv", C10D)).thread(2, 12, ("recv", C10D))
    waits = ranks.waits()
    assert waits.roots.ranks == () and waits.roots.open and waits.roots.victims == (0, 1, 2)


RING = """import torch.distributed as dist
def run(rank, world_size):
    if rank == 0:
        prepare()
    dist.recv(x, src=(rank - 1) % world_size)
    dist.send(x, dst=(rank + 1) % world_size)
"""


def test_who_receives_waits_for_the_peer_that_the_line_of_the_program_names() -> None:
    ranks = Ranks(RING).thread(0, 4, ("sleep", "/v/lib/python3.11/site-packages/x/y.py"))
    for rank in (1, 2, 3):
        ranks.thread(rank, 5, ("recv", C10D))
    waits = ranks.waits()
    assert (waits.roots.clear, waits.roots.ranks, waits.roots.victims) == (True, (0,), (1, 2, 3))


def test_ranks_that_receive_from_each_other_in_a_ring_are_a_circle() -> None:
    ranks = Ranks(RING)
    for rank in range(4):
        ranks.thread(rank, 5, ("recv", C10D))
    waits = ranks.waits()
    assert waits.roots.circle == (0, 1, 2, 3) and waits.suspects == ()


def test_two_sides_of_one_size_are_told_as_a_circle() -> None:
    ranks = Ranks()
    for rank in range(4):
        ranks.thread(rank, 20 if rank < 2 else 25, BACKWARD)
    waits = ranks.waits()
    assert not waits.roots.clear and waits.roots.circle == (0, 1, 2, 3) and waits.suspects == ()


# --- jobs that were recorded while they hung, and before


def test_a_saver_thread_that_waits_in_a_barrier_leads_to_the_rank_that_is_not_in_it() -> None:
    said = investigate([str(LIVE / "async_saver-hung.tar.zst")]).diagnose()
    (suspect,) = said.suspects
    assert (suspect.ranks, suspect.event) == ([2], SuspectEvent.ABSENT)
    assert said.verdict is Verdict.UNDECIDED and said.victims.ranks == [0, 1, 3]
    assert "async_saver.py:53" in said.headline and "barrier at async_saver.py:34" in said.headline
    assert said.chain[0].endswith("for rank 2.")


def test_who_is_behind_in_an_exchange_of_transfers_is_no_suspect_and_whom_it_waits_for_no_victim() -> None:
    investigation = investigate([str(LIVE / "moe_dispatch-hung.tar.zst")])
    said = investigation.diagnose()
    assert said.verdict is Verdict.UNDECIDED and said.suspects == []
    assert said.victims.ranks == [1]
    assert investigation.waits is not None
    assert "rank 1 waits in batch_isend_irecv at moe_dispatch.py:26" in investigation.waits.roots.open
    assert "for one of ranks 0, 2-3" in said.headline


@pytest.mark.parametrize("job", ["async_saver", "moe_dispatch"])
def test_the_same_jobs_before_their_fault_have_no_suspects(job: str) -> None:
    said = investigate([str(LIVE / f"{job}-healthy.tar.zst")]).diagnose()
    assert said.suspects == [] and said.verdict is not Verdict.DIAGNOSED


def test_waits_are_shown_and_drawn_from_any_rank() -> None:
    target = [str(LIVE / "async_saver-hung.tar.zst")]
    text = look(["waits"], target).text
    assert text.startswith("all waits lead to: rank 2")
    assert "ranks 0-1, 3 (thread saver) wait in barrier at async_saver.py:34" in text
    drawn = look(["waits", "0"], target, dot=True).text
    assert drawn.startswith("digraph waits {") and 'label="join"' in drawn and drawn.endswith("}")
    assert look(["waits", "9"], target).text == "no evidence mentions rank 9"
    with pytest.raises(UsageError):
        look(["ranks"], target, dot=True)


def test_of_a_healthy_job_no_waits_are_shown() -> None:
    assert look(["waits"], [str(LIVE / "async_saver-healthy.tar.zst")]).text == "no rank is known to wait"
