"""A kernel's log that somebody brought beside the flight records or the logs of a job (constructed)."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from constructed_records import as_pickle, dump, entry

from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Diagnosis, Verdict

CALLED = dt.datetime(2026, 11, 26, 15, 30, tzinfo=dt.UTC)
XID = "NVRM: Xid (PCI:0000:3b:00): 31, pid=88123, name=python, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS"


def xids(folder: Path, line: str) -> set[str]:
    for rank in (0, 1):
        called = int(CALLED.timestamp()) * 10**9
        times = {f"time_{what}_ns": called for what in ("created", "discovered_started", "discovered_completed")}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(as_pickle(dump(entry(**times))))
    (folder / "dmesg.txt").write_text(f"{line}\n[Thu Nov 26 15:29:41 2026] docker0: port 3 entered forwarding state\n")
    return {finding.attributes["basis"] for finding in investigate([str(folder)]).findings if finding.code == "gpu.xid"}


@pytest.mark.parametrize(
    "stamp", ["[Thu Nov 19 04:11:37 2026]", "2026-11-19T04:11:37,120000+01:00"], ids=["dmesg -T", "iso"]
)
def test_an_xid_of_last_week_is_none_of_a_job_that_made_calls_since(tmp_path: Path, stamp: str) -> None:
    assert xids(tmp_path, f"{stamp} {XID}") == set()


@pytest.mark.parametrize("stamp", ["[Thu Nov 26 15:29:37 2026]", "[12345.678901]"], ids=["just before", "undated"])
def test_one_of_the_day_counts_and_one_of_no_known_time(tmp_path: Path, stamp: str) -> None:
    assert xids(tmp_path, f"{stamp} {XID}") == {"host"}


LOST = "NVRM: Xid (PCI:0000:3b:00): 79, pid=991, name=python, GPU has fallen off the bus."
STEPS = "".join(f"2026-05-06 09:40:0{step} [rank{{rank}}]: step {step} loss 1.0\n" for step in range(5))
TIMED_OUT = (
    "[rank{rank}]:[E506 10:00:00.123456789 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran "
    "for 600052 milliseconds before timing out.\n"
)


def judged_beside(folder: Path, stamp: str, log: str) -> Diagnosis:
    for rank in (0, 2):
        (folder / f"rank{rank}.log").write_text(log.format(rank=rank))
    (folder / "kern.log").write_text(f"{stamp} {LOST}\n")
    return investigate([str(folder)]).diagnose()


@pytest.mark.parametrize("log", [STEPS + TIMED_OUT, TIMED_OUT], ids=["a year", "no year"])
@pytest.mark.parametrize(
    "stamp",
    [
        "2026-05-{day:02d}T09:45:00.123456+00:00 node7 kernel:",
        "May {day:2d} 09:45:00 node7 kernel: [12345.6]",
        "[Wed May {day:2d} 09:45:00 2026]",
    ],
    ids=["iso", "syslog", "dmesg -T"],
)
@pytest.mark.parametrize(("day", "counts"), [(1, False), (8, False), (6, True)], ids=["before", "after", "during"])
def test_a_kernel_line_counts_only_within_the_jobs_time(
    tmp_path: Path, log: str, stamp: str, day: int, *, counts: bool
) -> None:
    said = judged_beside(tmp_path, stamp.format(day=day), log)
    assert ([cause.id for cause in said.causes][:1] == ["gpu-fell-off-bus"]) == counts
    assert said.verdict is (Verdict.DIAGNOSED if counts else Verdict.UNDECIDED)
    assert not any("rank" in one.what.partition(":")[0] for one in said.missing), "the kernel's log is no run"
    assert any("kern.log" in one.what for one in said.missing) != counts


def test_a_line_in_the_middle_of_a_long_job_counts(tmp_path: Path) -> None:
    said = judged_beside(tmp_path, "May  4 09:45:00 node7 kernel:", "2026-05-03 09:00:00 starting\n" + TIMED_OUT)
    assert said.causes[0].id == "gpu-fell-off-bus"


def test_a_message_of_cuda_about_the_driver_is_a_log_of_the_job(tmp_path: Path) -> None:
    for rank in (0, 2):
        (tmp_path / f"rank{rank}.log").write_text((STEPS + TIMED_OUT).format(rank=rank))
    message = "Error 803: system has unsupported display driver / cuda driver combination"
    (tmp_path / "rank1.log").write_text(f"2026-05-03 10:00:00 [rank1] {message}\n")
    gaps = [one.what for one in investigate([str(tmp_path)]).diagnose().missing]
    assert any("rank1.log" in gap and "earlier run" in gap for gap in gaps)
    assert not any("kernel message" in gap for gap in gaps)
