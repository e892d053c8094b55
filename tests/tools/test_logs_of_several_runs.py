"""Logs of several runs that lie in one folder, and failures of yesterday in the log of today."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest
from test_records_that_belong_together import S, record

from ddx_tools.investigation.result import Investigation
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Verdict

RAISED = """\
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/srv/train.py", line 88, in <module>
[rank{rank}]:     main()
[rank{rank}]:   File "/srv/train.py", line 41, in main
[rank{rank}]:     batch = load(i)
[rank{rank}]: KeyError: 'labels'
"""
TIMED_OUT = (
    "[rank{rank}]:[E11{day} 14:05:14.123456789 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=4711, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran "
    "for 600012 milliseconds before timing out.\n"
)


def steps(day: int, hour: int, rank: int = 0, minutes: int = 5) -> str:
    return "".join(
        f"2026-11-{day} {hour:02d}:{minute:02d}:{second:02d} rank {rank} step {minute * 6 + second // 10} loss 2.5\n"
        for minute in range(minutes)
        for second in range(0, 60, 10)
    )


def timeouts(*ranks: int, day: int = 21) -> str:
    return "".join(TIMED_OUT.format(rank=rank, day=day) for rank in ranks)


def chatter(rank: int, first: int, last: int, day: int = 21) -> str:
    return "".join(
        f"2026-11-{day} 13:{minute:02d}:00 [rank{rank}] INFO saved metrics\n" for minute in range(first, last)
    )


def investigated(folder: Path, **logs: str) -> Investigation:
    for name, text in logs.items():
        (folder / f"{name.replace('_', '-')}.out").write_text(text)
    return investigate([str(folder)])


def written(folder: Path, logs: dict[str, str]) -> Investigation:
    for name, text in logs.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return investigate([str(folder)])


def test_a_run_of_the_day_before_explains_nothing(tmp_path: Path) -> None:
    found = investigated(
        tmp_path, first=steps(20, 9) + RAISED.format(rank=1), second=steps(21, 13, minutes=59) + timeouts(0, 2, 3)
    )
    said = found.diagnose()
    assert said.verdict is Verdict.UNDECIDED
    assert "program-error" not in [cause.id for cause in said.causes]
    assert any("first.out" in one.what and "earlier run" in one.what for one in said.missing)


def test_another_job_of_the_scheduler_is_another_run_at_any_distance(tmp_path: Path) -> None:
    logs = {
        "slurm_1001": steps(21, 9) + RAISED.format(rank=1),
        "slurm_1002": steps(21, 13, minutes=59) + timeouts(0, 2, 3),
    }
    assert investigated(tmp_path, **logs).diagnose().verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(
    "logs",
    [
        {"rank0": steps(21, 13, 0) + timeouts(0, 2, 3), "rank1": steps(21, 13, 1) + RAISED.format(rank=1)},
        {"rank0": steps(21, 13, 0) + timeouts(0, 2, 3), "rank1": steps(21, 3, 1) + RAISED.format(rank=1)},
        {"slurm_1001": steps(21, 13, 0) + timeouts(0, 2, 3), "slurm_1001_1": steps(21, 13, 1) + RAISED.format(rank=1)},
        {"train": steps(20, 23, minutes=59) + RAISED.format(rank=1) + timeouts(0, 2, 3, day=20)},
        {"first": "step 1 loss 2\n" + RAISED.format(rank=1), "second": "step 1 loss 2\n" + timeouts(0, 2, 3)},
    ],
    ids=["one moment", "clocks of two time zones", "two files of one job", "one file", "no dates"],
)
def test_logs_of_one_run_belong_together(tmp_path: Path, logs: dict[str, str]) -> None:
    said = investigated(tmp_path, **logs).diagnose()
    assert (said.verdict, said.causes[0].id, said.culprits.ranks) == (Verdict.DIAGNOSED, "program-error", [1])


def test_a_rank_that_makes_steps_hours_later_did_not_end(tmp_path: Path) -> None:
    late = steps(20, 12, 2, minutes=1) + RAISED.format(rank=2) + steps(21, 13, 2)
    others = {f"rank{rank}": steps(21, 13, rank) + timeouts(rank) for rank in (0, 1, 3)}
    said = investigated(tmp_path, rank2=late, **others).diagnose()
    assert said.verdict is Verdict.UNDECIDED
    assert said.suspects[0].ranks == [2], "it alone reports no timeout"


def test_one_run_alone_is_judged_whatever_its_day(tmp_path: Path) -> None:
    said = investigated(tmp_path, first=steps(20, 9) + RAISED.format(rank=1)).diagnose()
    assert said.causes[0].id == "program-error"


@pytest.mark.parametrize(
    "log",
    [
        steps(20, 12, 1) + RAISED.format(rank=1) + timeouts(0, 2, 3),
        "2026-11-20 12:00:00 starting\n" + RAISED.format(rank=1) + timeouts(0, 2, 3),
        steps(20, 12, 1) + RAISED.format(rank=1) + "2026-11-21 14:00:00 INFO again\n" + timeouts(0, 2, 3),
    ],
    ids=["no step since", "no step at all", "lines of today"],
)
def test_timeouts_a_day_after_a_failure_are_of_another_attempt(tmp_path: Path, log: str) -> None:
    said = investigated(tmp_path, train=log).diagnose()
    assert said.verdict is Verdict.UNDECIDED
    assert "program-error" not in [cause.id for cause in said.causes]


@pytest.mark.parametrize(
    "log",
    [
        steps(21, 13, 1, minutes=59) + RAISED.format(rank=1) + timeouts(0, 2, 3),
        steps(21, 3, 1, minutes=59) + RAISED.format(rank=1) + timeouts(0, 2, 3),
        steps(21, 13, 1) + RAISED.format(rank=1) + timeouts(0, 2, 3, day=22).replace("600012", "86400012"),
    ],
    ids=["ten minutes", "a zone that no header states", "a limit of a day"],
)
def test_timeouts_that_began_with_the_failure_follow_from_it(tmp_path: Path, log: str) -> None:
    said = investigated(tmp_path, train=log).diagnose()
    assert (said.verdict, said.causes[0].id, said.culprits.ranks) == (Verdict.DIAGNOSED, "program-error", [1])


@pytest.mark.parametrize("day", [21, 20], ids=["40 minutes", "25 hours"])
def test_a_rank_that_speaks_on_did_not_end(tmp_path: Path, day: int) -> None:
    late = steps(day, 12, 1) + RAISED.format(rank=1) + chatter(1, 0, 50)
    found = investigated(tmp_path, rank1=late, rank0=steps(21, 13, minutes=50) + timeouts(0, 2, 3))
    said = found.diagnose()
    assert said.verdict is Verdict.UNDECIDED and not said.culprits.ranks
    assert not said.missing, "the log is of this run"


@pytest.mark.parametrize(
    "last_words",
    [
        chatter(1, 5, 9),
        "2026-11-21 14:30:00 [rank1]:[W1121 14:30:00.000000001 ProcessGroupNCCL.cpp:1538] HeartbeatMonitor waits\n",
    ],
    ids=["minutes of cleaning up", "a thread of a library"],
)
def test_last_words_show_no_survival(tmp_path: Path, last_words: str) -> None:
    logs = {"rank1": steps(21, 13, 1) + RAISED.format(rank=1) + last_words, "rank0": steps(21, 13) + timeouts(0, 2, 3)}
    said = investigated(tmp_path, **logs).diagnose()
    assert (said.verdict, said.causes[0].id, said.culprits.ranks) == (Verdict.DIAGNOSED, "program-error", [1])


@pytest.mark.parametrize(("day", "explained"), [(20, False), (21, True)])
def test_a_log_of_the_day_before_explains_no_record_of_today(tmp_path: Path, day: int, *, explained: bool) -> None:
    noon = int(dt.datetime(2026, 11, 21, 13, tzinfo=dt.UTC).timestamp()) * S
    for rank in range(4):
        data = record(4 if rank == 1 else 5, begun_ns=noon + rank * 1_000, stands=rank != 1)
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(data)
    said = investigated(tmp_path, rank1=steps(day, 9, 1) + RAISED.format(rank=1)).diagnose()
    assert (said.verdict is Verdict.DIAGNOSED) == explained
    assert ("program-error" in [cause.id for cause in said.causes]) == explained


def states(**facts: object) -> str:
    return "2026-11-21 13:00:00 " + " ".join(f"{name}={value}" for name, value in facts.items()) + "\n"


OF_ONE = steps(21, 13, minutes=30) + RAISED.format(rank=1)
OF_OTHER = steps(21, 13, minutes=59) + timeouts(0, 2, 3)


@pytest.mark.parametrize(
    "logs",
    [
        {"slurm-1001.out": OF_ONE, "slurm-1002.out": OF_OTHER},
        {"slurm-1001/rank0.log": OF_ONE, "slurm-1002/rank0.log": OF_OTHER},
        {"a.out": states(SLURM_JOB_ID=1001) + OF_ONE, "b.out": states(SLURM_JOB_ID=1002) + OF_OTHER},
        {"a.out": states(MASTER_ADDR="node-a1") + OF_ONE, "b.out": states(MASTER_ADDR="node-b1") + OF_OTHER},
        {"a.out": states(WORLD_SIZE=4) + OF_ONE, "b.out": states(WORLD_SIZE=8) + OF_OTHER},
        {"a.out": "[rank1]: world_size=4\n" + OF_ONE, "b.out": OF_OTHER + timeouts(15)},
    ],
    ids=["names", "folders", "job numbers", "addresses", "world sizes", "a rank beyond the world size"],
)
def test_a_job_of_the_same_hour_explains_nothing(tmp_path: Path, logs: dict[str, str]) -> None:
    said = written(tmp_path, logs).diagnose()
    first, last = logs
    assert said.verdict is Verdict.UNDECIDED and not said.culprits.ranks
    assert any(first in one.what and "another job" in one.what for one in said.missing)
    assert not any(last in one.what for one in said.missing)


@pytest.mark.parametrize(
    "logs",
    [
        {"a.out": states(SLURM_JOB_ID=1001) + OF_ONE, "b.out": states(SLURM_JOB_ID=1001) + OF_OTHER},
        {"slurm-1001/node-0.out": OF_ONE, "slurm-1001/node-1.out": OF_OTHER},
        {"slurm-1001.out": OF_ONE, "job-777/rank0.log": OF_OTHER},
        {"a.out": states(MASTER_ADDR="node-a1") + OF_ONE, "b.out": states(MASTER_ADDR="node-a1.cluster") + OF_OTHER},
        {"a.out": states(MASTER_ADDR="10.0.0.7") + OF_ONE, "b.out": states(MASTER_ADDR="node-a1") + OF_OTHER},
        {"a.out": states(WORLD_SIZE=16) + OF_ONE, "b.out": OF_OTHER + timeouts(15)},
        {
            "a.out": states(WORLD_SIZE=4) + states(WORLD_SIZE=3) + OF_ONE,
            "b.out": states(WORLD_SIZE=4) + OF_OTHER,
        },
        {"a.out": "[rank1]: tp world_size=2\n" + OF_ONE, "b.out": "[rank3]: tp world_size=2\n" + OF_OTHER},
        {"a.out": states(SLURM_JOB_ID=1001) + OF_ONE, "b.out": OF_OTHER},
        {
            "a.out": states(WORLD_SIZE=16) + OF_ONE,
            "b.out": "INFO parallel_state.py:1134] world_size=2 rank=1 local_rank=1 backend=nccl\n" + OF_OTHER,
        },
    ],
    ids=[
        "job numbers", "folder", "folder of another number", "a longer name", "a name and an address", "world size",
        "an elastic restart", "size of a part", "one states nothing", "an engine beside a trainer",
    ],
)  # fmt: skip
def test_logs_that_state_one_job_belong_together(tmp_path: Path, logs: dict[str, str]) -> None:
    said = written(tmp_path, logs).diagnose()
    assert (said.verdict, said.causes[0].id, said.culprits.ranks) == (Verdict.DIAGNOSED, "program-error", [1])
    assert not said.missing


UNDATED_YEAR = TIMED_OUT.replace("E11{day}", "E{date}")
SUMMARY = """\
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-05-{day:02d}_10:00:00
  host      : node7
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 991)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


def of_may(day: int, *ranks: int, limit: str = "600012") -> dict[str, str]:
    """Timeouts that only torch dates, without a zero before the month."""
    line = UNDATED_YEAR.replace("600012", limit)
    return {f"rank{rank}.log": line.format(rank=rank, date=f"5{day:02d}") for rank in ranks}


def raised_in_may(day: int) -> str:
    return "".join(f"2026-05-{day:02d} 14:00:00 {line}\n" for line in RAISED.format(rank=1).splitlines())


FIRST_LINE = "[rank1]:[W5{day:02d} 13:50:00.100000000 ProcessGroupNCCL.cpp:4561] [PG 0 Rank 1] using GPU 1\n"


@pytest.mark.parametrize(
    ("logs", "cause"),
    [
        (lambda day: {"rank1.log": FIRST_LINE.format(day=day) + RAISED.format(rank=1)}, "program-error"),
        (lambda day: {"rank1.log": raised_in_may(day)}, "program-error"),
        (lambda day: {"launcher.log": SUMMARY.format(day=day)}, "rank-crashed"),
        (
            lambda day: (
                {"rank1.log": raised_in_may(day), "rank3.log": "2026-05-01 09:00:00 step 1 loss 2\n"}
                | {"rank0.log": "2026-05-01 09:00:00 step 1 loss 2\n" + of_may(6, 0)["rank0.log"]}
            ),
            "program-error",
        ),
    ],
    ids=["headers without a year", "a year in one log", "torchrun's summary", "logs that began together"],
)
@pytest.mark.parametrize(("day", "explained"), [(3, False), (6, True)])
def test_dates_without_a_year_tell_runs_apart(
    tmp_path: Path, logs: Callable[[int], dict[str, str]], cause: str, day: int, *, explained: bool
) -> None:
    said = written(tmp_path, of_may(6, 0, 2) | logs(day)).diagnose()
    assert (said.verdict is Verdict.DIAGNOSED) == explained
    assert (cause in [one.id for one in said.causes]) == explained


def test_a_wait_of_days_began_with_the_failure(tmp_path: Path) -> None:
    said = written(tmp_path, of_may(6, 0, 2, limit=str(3 * 86_400_000)) | {"rank1.log": raised_in_may(3)}).diagnose()
    assert (said.verdict, said.culprits.ranks) == (Verdict.DIAGNOSED, [1])


def test_the_night_of_a_new_year_is_one_run(tmp_path: Path) -> None:
    late = FIRST_LINE.replace("W5{day:02d}", "W1231") + RAISED.format(rank=1)
    peers = {f"rank{rank}.log": UNDATED_YEAR.format(rank=rank, date="101") for rank in (0, 2)}
    said = written(tmp_path, peers | {"rank1.log": late.replace("13:50", "23:50")}).diagnose()
    assert (said.verdict, said.culprits.ranks) == (Verdict.DIAGNOSED, [1])


def joined(rank: int, nranks: int, name: str) -> str:
    return (
        f"node1:10{rank}:10{rank} [{rank}] NCCL INFO ncclCommInitRank comm 0x5{rank} rank {rank} nranks {nranks} "
        f"cudaDev {rank} nvmlDev {rank} busId {rank}000 commId {name} - Init COMPLETE\n"
    )


def of_two(first: str, second: str) -> dict[str, str]:
    dated = "".join(f"2026-11-21 13:55:00 {line}\n" for line in RAISED.format(rank=1).splitlines())
    return {"rank0.log": first + TIMED_OUT.format(rank=0, day=21), "rank1.log": second + dated}


@pytest.mark.parametrize(
    ("logs", "explained"),
    [
        (of_two(joined(0, 4, "0xa1"), joined(1, 8, "0xb2")), False),
        (of_two(states(world_size=4, rank=0), states(world_size=8, rank=1)), False),
        (of_two(states(MASTER_ADDR="node1"), states(MASTER_ADDR="node9")), False),
        (of_two(joined(0, 8, "0xa1"), joined(1, 8, "0xa1")), True),
        (of_two(joined(0, 8, "0xa1") + joined(0, 4, "0xc3"), joined(1, 8, "0xa1") + joined(1, 2, "0xd4")), True),
        (of_two(joined(0, 4, "0xa1"), joined(0, 8, "0xb2")), True),
        (of_two(joined(0, 4, "0xa1") + joined(0, 2, "0xe5"), joined(1, 8, "0xb2") + joined(1, 2, "0xe5")), True),
        (of_two(states(world_size=8, rank=0), states(world_size=8, rank=1)), True),
    ],
    ids=[
        "communicators", "lower case", "an address that torch dates", "one communicator", "groups of one job",
        "a group that counts its own ranks", "a group in common", "one world size",
    ],
)  # fmt: skip
def test_jobs_of_different_sizes_explain_nothing_about_each_other(
    tmp_path: Path, logs: dict[str, str], *, explained: bool
) -> None:
    said = written(tmp_path, logs).diagnose()
    assert (said.verdict is Verdict.DIAGNOSED) == explained
    assert any("another job" in one.what for one in said.missing) != explained


FINISHED = steps(21, 9, 0) + "2026-11-21 09:10:00 [rank0]: Training completed\n"


@pytest.mark.parametrize(
    ("logs", "verdict"),
    [
        ({"rank0.log": FINISHED, "rank1.log": steps(18, 9, 1)}, Verdict.UNDECIDED),
        ({"rank0.log": FINISHED, "rank1.log": steps(18, 9, 1) + RAISED.format(rank=1)}, Verdict.UNDECIDED),
        ({"rank0.log": steps(21, 9, 0), "rank1.log": steps(18, 9, 1) + RAISED.format(rank=1)}, Verdict.UNDECIDED),
        ({"rank0.log": FINISHED, "rank1.log": FINISHED.replace("rank 0", "rank 1")}, Verdict.HEALTHY),
        ({"new.log": FINISHED, "old.log": steps(18, 9, 0)}, Verdict.HEALTHY),
    ],
    ids=["stale steps", "a stale exception", "stale, nobody done", "both of today", "an old log of the same rank"],
)
def test_a_rank_whose_only_log_is_old_may_not_be_well(tmp_path: Path, logs: dict[str, str], verdict: Verdict) -> None:
    assert written(tmp_path, logs).diagnose().verdict is verdict
