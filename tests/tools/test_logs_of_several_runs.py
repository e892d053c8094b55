"""Logs of several runs that lie in one folder, and failures of yesterday in the log of today."""

from __future__ import annotations

import datetime as dt
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
