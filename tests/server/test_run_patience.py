"""When a silent job is looked at: never of its usual pace, always before what would end it."""

from pathlib import Path
from typing import Any

import pytest

from ddx_server.run.collective_progress import RankProgress
from ddx_server.run.patience import Limit, Patience, Stage
from ddx_server.run.printed_progress import PrintedProgress
from ddx_server.run.streams import LauncherLog

HOUR = 3600.0


def stepping(gaps: list[float], stall_after_s: float | None = 300.0) -> Patience:
    """A job that made its first steps and then moved after each of these gaps; the last time at 0."""
    patience = Patience(-HOUR, stall_after_s)
    at = -sum(gaps)
    for number in range(6):
        patience.move(at - 6 + number)
    patience.move(at)
    for gap in gaps:
        at += gap
        patience.move(at)
    return patience


def first_look(patience: Patience, limit: Limit | None = None, **how: bool) -> tuple[float, Stage] | None:
    """After how many seconds of silence the job is looked at, and how."""
    for second in range(int(HOUR)):
        if stage := patience.due(second, limit, busy=how.get("busy", False), lost=how.get("lost", False)):
            return second, stage
    return None


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [([1.0] * 20, (15, "early")), ([1.0, 20.0, 1.0], (80, "early")), ([1.0, 200.0, 1.0], (300, "last"))],
)
def test_a_silence_is_measured_by_the_longest_that_the_job_came_out_of(
    gaps: list[float], expected: tuple[float, str]
) -> None:
    assert first_look(stepping(gaps)) == expected


def test_before_its_first_steps_a_job_has_no_pace() -> None:
    patience = Patience(0.0, 300.0)
    assert first_look(patience) == (300, "last")


def test_a_job_that_computes_and_waits_for_nobody_is_left_alone_for_as_long_as_it_was_told() -> None:
    assert first_look(stepping([1.0]), busy=True) == (300, "last")


def test_a_job_that_lost_a_rank_need_not_be_silent() -> None:
    assert first_look(stepping([1.0, 20.0]), lost=True) == (0, "early")


@pytest.mark.parametrize(("limit_s", "at_s"), [(60.0, 30), (600.0, 300), (10.0, 4), (40.0, 14)])
def test_the_last_look_leaves_time_to_look_and_to_tell(limit_s: float, at_s: float) -> None:
    assert first_look(Patience(0.0, 300.0), Limit(0.0, limit_s)) == (at_s, "last")


def test_where_looks_take_longer_the_last_begins_earlier() -> None:
    patience = Patience(0.0, 300.0)
    patience.took(18.0)
    assert first_look(patience, Limit(0.0, 60.0)) == (24, "last")


def test_usual_waits_are_no_reason_to_look_even_where_a_limit_is_short() -> None:
    assert first_look(stepping([1.0, 20.0, 1.0]), Limit(0.0, 45.0)) == (30, "last")


def test_after_the_last_look_the_next_has_twice_the_patience() -> None:
    patience = Patience(0.0, 300.0)
    patience.looked("last", 300.0, None)
    assert first_look(patience) == (600, "last")


def test_a_look_that_came_before_the_limit_was_near_is_repeated_when_it_is() -> None:
    patience = Patience(0.0, 300.0)
    patience.looked("last", 300.0, None)
    assert first_look(patience, Limit(0.0, 500.0)) == (470, "last")


def test_a_rank_that_waits_while_others_go_on_is_looked_at_once() -> None:
    patience = stepping([1.0] * 20)
    waits = Limit(-14.0, 60.0)
    assert first_look(patience, waits) == (15, "early")
    patience.looked("early", 15.0, waits)
    assert first_look(patience, waits) == (16, "last")
    patience.looked("last", 16.0, waits)
    patience.move(17.0)
    assert patience.due(20.0, waits, busy=False, lost=False) is None


def test_a_job_that_is_never_to_be_looked_at_is_not() -> None:
    assert first_look(stepping([1.0], None), Limit(0.0, 60.0), lost=True) is None


def header(enqueued: int, completed: int, *, cpu_s: float = 0.0, **group: Any) -> dict[str, Any]:
    """What an agent says of a rank with one group."""
    status = {"last_enqueued_collective": str(enqueued), "last_completed_collective": str(completed)}
    groups = [{"name": "0", "backend": "gloo", "last_enqueued": enqueued, **group}]
    return {"groups": groups, "pg_status": {"fr": {"0": status}}, "process_cpu_s": cpu_s}


def test_a_rank_may_wait_since_the_look_before_the_one_that_first_showed_it() -> None:
    rank = RankProgress(0.0)
    seen = []
    for at_s, status in [(2.0, header(5, 5)), (4.0, header(6, 5)), (6.0, header(6, 5)), (14.0, header(7, 6))]:
        rank.look(status, at_s)
        seen.append((rank.moved_s, rank.waits_since_s))
    assert seen == [(2.0, None), (4.0, 2.0), (4.0, 2.0), (14.0, 6.0)]
    assert rank.longest_wait_s == 12.0


def test_a_rank_waits_for_the_others_to_join_as_long_as_it_was_told_to() -> None:
    rank = RankProgress(0.0)
    rank.look({"groups": [], "joining_s": 60.0, "pg_status": {}}, 2.0)
    rank.look({"groups": [], "joining_s": 60.0, "pg_status": {}}, 4.0)
    assert (rank.joined, rank.waits_since_s, rank.limit_s) == (True, 2.0, 60.0)
    rank.look(header(0, 0, timeout_s=90.0), 6.0)
    assert (rank.joined, rank.waits_since_s, rank.limit_s) == (True, None, 90.0)


@pytest.mark.parametrize(
    ("group", "limit_s"),
    [({"timeout_s": 61.0}, 61.0), ({}, 1800.0), ({"backend": "nccl"}, 600.0), ({"backend": "cpu:gloo,nccl"}, 600.0)],
)
def test_the_limit_is_what_the_group_says_or_the_default_of_torch(group: dict[str, Any], limit_s: float) -> None:
    rank = RankProgress(0.0)
    rank.look(header(1, 1, **group), 1.0)
    assert rank.limit_s == limit_s


def test_only_the_limits_of_groups_that_wait_count() -> None:
    rank = RankProgress(0.0)
    told = header(6, 5, timeout_s=1800.0)
    told["groups"].append({"name": "1", "backend": "gloo", "last_enqueued": 40, "timeout_s": 60.0})
    told["pg_status"]["fr"]["1"] = {"last_enqueued_collective": "40", "last_completed_collective": "40"}
    rank.look(told, 2.0)
    assert rank.limit_s == 1800.0
    told["pg_status"]["fr"]["1"] = {"last_enqueued_collective": "40", "last_completed_collective": "39"}
    rank.look(told, 4.0)
    assert rank.limit_s == 60.0


def test_a_rank_is_busy_that_computes_most_of_the_time() -> None:
    rank = RankProgress(0.0)
    for at_s, cpu_s, busy in [(2.0, 10.0, False), (4.0, 11.8, True), (6.0, 11.9, False)]:
        rank.look(header(1, 1, cpu_s=cpu_s), at_s)
        assert rank.busy is busy


def test_what_is_no_status_says_nothing() -> None:
    rank = RankProgress(0.0)
    rank.look({"groups": "?", "pg_status": {"fr": [1]}, "process_cpu_s": None}, 5.0)
    assert (rank.joined, rank.limit_s, rank.waits_since_s) == (False, None, None)


def printed(path: Path) -> tuple[LauncherLog, PrintedProgress]:
    log = LauncherLog(path / "launcher.log")
    return log, PrintedProgress(log.path)


def test_steps_that_go_on_are_progress_and_words_are_not(tmp_path: Path) -> None:
    log, progress = printed(tmp_path)
    log.write(b"[default0]:step 4 loss 2.1\n")
    assert progress.look() == (True, True)
    log.write(b"[default1]:still waiting for the data ...\n")
    assert progress.look() == (True, False)
    log.write(b"[default0]:step 4 loss 2.1\n")
    assert progress.look() == (True, False)
    log.write(b"\rEpoch 3:  40%|4   | 40/100 [00:20<00:30, 2.0it/s]\rEpoch 3:  41%|4   | 41/100 [00:20<00:30, 2.0it/s]")
    assert progress.look() == (True, True)
    assert progress.look() == (False, False)
    log.close()


def test_of_much_output_the_end_is_read(tmp_path: Path) -> None:
    log, progress = printed(tmp_path)
    log.write(b"".join(b"step %d loss 2.1\n" % step for step in range(50_000)))
    assert progress.look() == (True, True)
    assert progress.last_step == 49_999
    log.close()


@pytest.mark.parametrize(
    "line",
    [
        b"[rank1]: RuntimeError: [unbound_buffer.cc:78] Timed out waiting 45000ms for recv operation to complete\n",
        b"WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=45000) ran for 45012 milliseconds before timing out.\n",
    ],
)
def test_a_message_of_an_earlier_attempt_tells_the_limit(tmp_path: Path, line: bytes) -> None:
    log, progress = printed(tmp_path)
    assert progress.limit_s is None
    log.write(line)
    progress.look()
    assert progress.limit_s == 45.0
    log.close()
