"""What a launcher's log, a kernel log of another host, or a record of before the end shows about an earlier attempt."""

from __future__ import annotations

from pathlib import Path

import pytest
from constructed_records import as_pickle, dump, entry

from ddx_tools.analysis.ranks.job_hosts import host_lists, of_other_hosts
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Diagnosis, Verdict
from ddx_tools.parsers.logs.log_lines import lines_of
from ddx_tools.parsers.logs.log_prefixes import Labels
from ddx_tools.parsers.logs.new_starts import new_start

S = 1_000_000_000
STARTED = "I1117 {at}.119000 {pid} torch/distributed/elastic/agent/server/api.py:541] [default] Starting worker group\n"
FAILED = (
    "E1117 {at}.921000 {pid} torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) "
    "local_rank: 0 (pid: {worker}) of binary: /opt/venv/bin/python\n"
)
STACK = """\
Process {pid}: /opt/venv/bin/python -u train.py
Python v3.11.9 (/opt/venv/bin/python3.11)

Thread {pid} (idle): "MainThread"
    {frame}
    main (train.py:88)
    <module> (train.py:203)
"""
BARRIER = "barrier (torch/distributed/distributed_c10d.py:5112)\n    wait_for_all (train.py:61)"
READING = "load_checkpoint (checkpoint.py:102)"


def written(folder: Path, **files: str) -> Diagnosis:
    for name, text in files.items():
        (folder / f"{name}.log").write_text(text, encoding="utf-8")
    return investigate([str(folder)]).diagnose()


def causes(diagnosis: Diagnosis) -> list[str]:
    return [cause.id for cause in diagnosis.causes]


# --- restarts by a launcher


@pytest.mark.parametrize(
    ("again", "restarted"),
    [
        (STARTED.format(at="11:46:10", pid=8800), True),
        (STARTED.format(at="13:39:42", pid=9920), True),
        (STARTED.format(at="11:09:31", pid=9920), False),  # another host's log, one after the other
        ("", False),
    ],
    ids=["the same launcher", "a new launcher", "a launcher of another host", "nothing"],
)
def test_failures_above_a_restart_are_of_an_earlier_attempt(tmp_path: Path, again: str, restarted: bool) -> None:
    log = STARTED.format(at="11:09:31", pid=8800) + FAILED.format(at="11:45:54", pid=8800, worker=8811) + again
    steps = "".join(f"[rank{rank}]: step {step} loss 2.5\n" for step in (1, 2, 3) for rank in range(2))
    diagnosis = written(tmp_path, torchrun=log + steps)
    assert ("rank-crashed" in causes(diagnosis) or diagnosis.verdict is Verdict.DIAGNOSED) is not restarted


def test_stacks_of_processes_that_ended_before_a_restart_are_not_compared(tmp_path: Path) -> None:
    """Ranks 0 and 1 were looked at before the restart, ranks 2 and 3 after it."""
    log = STARTED.format(at="01:00:02", pid=2980)
    log += "".join(
        f"W1117 03:12:08.112000 2980 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process {pid} "
        "closing signal SIGTERM\n"
        for pid in (3001, 3002, 3003)
    )
    log += FAILED.format(at="03:12:09", pid=2980, worker=3004) + STARTED.format(at="03:12:20", pid=2980)
    for rank, pid, frame in ((0, 3001, BARRIER), (1, 3002, BARRIER), (2, 4103, READING), (3, 4104, BARRIER)):
        (tmp_path / f"pyspy_rank{rank}.txt").write_text(STACK.format(pid=pid, frame=frame), encoding="utf-8")
    diagnosis = written(tmp_path, torchrun=log)
    assert diagnosis.verdict is not Verdict.DIAGNOSED
    assert [suspect.ranks for suspect in diagnosis.suspects] == [[2]]


@pytest.mark.parametrize(
    ("line", "launcher"),
    [
        (STARTED.format(at="11:09:31", pid=8800), 8800),
        ("[default] Starting worker group", None),
        ("I1117 11:09:31.119000 8800 x.py:1] [default] Stopping worker group", None),
    ],
)
def test_only_a_launcher_that_names_itself_starts_workers(line: str, launcher: int | None) -> None:
    (read,) = lines_of(1, line.strip().encode(), Labels(line.encode()))
    start = new_start(read)
    assert (start.launcher if start else None) == launcher


# --- an abort that only the launcher reports

SUMMARY = """\
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-10_16:47:19
  host      : node-2
  rank      : 2 (local_rank: 2)
  exitcode  : -6 (pid: 3323)
  error_file: <N/A>
  traceback : Signal 6 (SIGABRT) received by PID 3323
============================================================
"""
FRAMES = """\
Exception raised from checkTimeout at /p/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:691 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x80 (0x7e0f3057eeb0 in /opt/torch/lib/libc10.so)
frame #1: c10d::ProcessGroupNCCL::Watchdog::runLoop() + 0x1591 (0x7e0f30e4e5c1 in /opt/torch/lib/libtorch_cuda.so)
"""


@pytest.mark.parametrize(
    ("files", "decided"),
    [
        ({"torchrun": SUMMARY}, False),
        ({"torchrun": SUMMARY, "rank_2": FRAMES}, False),
        ({"job": "[rank2]: step 11 loss 2.5\n[rank3]: step 11 loss 2.5\n" + SUMMARY}, True),
    ],
    ids=["the launcher's log alone", "with the watchdog's frames", "with what the ranks printed"],
)
def test_an_abort_without_the_ranks_own_output_is_not_its_crash(
    tmp_path: Path, files: dict[str, str], decided: bool
) -> None:
    assert (written(tmp_path, **files).verdict is Verdict.DIAGNOSED) is decided


def test_a_list_of_failures_alone_shows_no_exit_with_code_0(tmp_path: Path) -> None:
    diagnosis = written(tmp_path, torchrun=SUMMARY, rank_2=FRAMES)
    assert "code 0" not in diagnosis.headline


# --- kernel logs of other hosts

XID = (
    "[Thu Nov  5 09:11:02 2026] NVRM: Xid (PCI:0000:9d:00): 48, pid=40771, name=python, DBE (double bit error) on GPU\n"
)
STEPS = "".join(
    f"2026-11-05 09:{minute:02}:40,002 INFO rank={rank} step={minute} loss=2.6\n"
    for minute in range(1, 20)
    for rank in (0, 1)
)


@pytest.mark.parametrize(
    ("name", "counts"),
    [("dmesg_a07", False), ("dmesg_a02", True), ("dmesg", True), ("kernel-b07", True)],
    ids=["another host", "a host of the job", "no host", "a name of another form"],
)
def test_a_kernel_log_of_a_host_outside_of_the_job_decides_nothing(tmp_path: Path, name: str, counts: bool) -> None:
    job = "==> job 88121 starting 2026-11-05T08:59:40 on a[01-02]\n" + STEPS
    diagnosis = written(tmp_path, **{name: XID, "slurm-88121": job})
    assert ("gpu-memory-error" in causes(diagnosis)) is counts


def test_after_a_requeue_only_the_new_hosts_are_of_the_job(tmp_path: Path) -> None:
    job = (
        "==> job 88213 starting 2026-11-05T08:59:40 on b[03-04]\n" + STEPS + "slurmstepd: error: *** JOB 88213 ON b03 "
        "CANCELLED AT 2026-11-05T09:11:30 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n"
        "==> job 88213 starting 2026-11-05T09:30:15 on b[07-08] (requeue 1)\n" + STEPS.replace("-05 09:", "-05 11:")
    )
    assert "gpu-memory-error" not in causes(written(tmp_path, **{"dmesg_b04": XID, "slurm-88213": job}))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("SLURM_JOB_NODELIST=gpu[01-03,07]", [("gpu", 2, {1, 2, 3, 7})]),
        ("JobID NodeList\n1 node-[8-9]", [("node-", 1, {8, 9})]),
        ("shape of x[3], layers[0-4], rank[0-3]", []),
        ("starting on a[1-999999999]", None),
        ("NodeList=gpu01", [("gpu", 2, {1})]),
        ("ReqNodeList=(null) ExcNodeList=gpu[07-08]", []),
        ("srun: error: Node failure on gpu[03-04]", []),
        ("excluding nodes gpu[07-08]", []),
    ],
)
def test_lists_of_hosts_are_read_and_bounded(text: str, names: list[tuple[str, int, set[int]]] | None) -> None:
    found = host_lists(text.encode())
    if names is None:
        assert all(len(each.numbers) <= 20_001 for each in found)
    else:
        assert [(each.prefix, each.width, {*each.numbers}) for each in found] == names


def test_a_file_named_for_hosts_within_and_outside_of_the_job_counts() -> None:
    lists = host_lists(b"job 7 started on a[01-02]")
    assert of_other_hosts({"one": "a07_to_a01.log", "two": "logs/a07.log"}, lists).keys() == {"two"}


# --- records that a log goes on after


@pytest.mark.parametrize(
    ("ends", "healthy"),
    [("11:01:40", True), ("13:37:10", False), ("13:01:20", True)],
    ids=["with the records", "hours later", "in another time zone"],
)
def test_records_of_long_before_the_end_of_a_log_show_no_health(tmp_path: Path, ends: str, healthy: bool) -> None:
    noon_ns = 1_762_081_200 * S  # 2025-11-02 11:00:00 UTC
    for rank in range(2):
        calls = [
            entry(
                record_id=seq,
                collective_seq_id=seq,
                op_id=seq,
                time_created_ns=noon_ns + seq * S + rank,
                time_discovered_started_ns=noon_ns + seq * S + 1000 + rank,
                time_discovered_completed_ns=noon_ns + seq * S + 2000 + rank,
            )
            for seq in range(1, 60)
        ]
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(as_pickle(dump(*calls, pg_status={})))
    log = f"2025-11-02 10:59:10,002 INFO rank=0 step=1 loss=2.6\n2025-11-02 {ends},002 INFO rank=0 step=2 loss=2.5\n"
    assert (written(tmp_path, rank_0=log).verdict is Verdict.HEALTHY) is healthy


# --- a rank that speaks in another log after its end

ENDED = SUMMARY.replace("2026-11-10_16:47:19", "2026-11-10_10:47:19").replace("-6 (", "1 (")


@pytest.mark.parametrize(
    ("last", "ended"),
    [("10:47:10", True), ("12:05:20", False), ("12:47:12", True)],
    ids=["its last words", "it speaks for an hour", "the same in another time zone"],
)
def test_an_end_before_the_ranks_last_words_is_of_another_attempt(tmp_path: Path, last: str, ended: bool) -> None:
    words = "".join(
        f"2026-11-10 {at},002 INFO [rank2] step {step} loss 2.5\n" for step, at in enumerate(("10:40:00", last))
    )
    diagnosis = written(tmp_path, torchrun=ENDED, rank_2=words)
    assert (diagnosis.suspects != []) is ended


@pytest.mark.parametrize(
    ("local_rank", "last", "ended"),
    [(2, "11:04:20", False), (1, "11:04:20", False), (1, "10:47:25", True)],
    ids=["it speaks on", "its peer steps on", "nobody steps on"],
)
def test_on_one_host_a_local_rank_that_speaks_elsewhere_did_not_end(
    tmp_path: Path, local_rank: int, last: str, ended: bool
) -> None:
    """A test on another host killed one of its ranks, a quarter of an hour before the training stopped."""
    killed = FAILED.format(at="10:47:19", pid=20001, worker=20117).replace("local_rank: 0", f"local_rank: {local_rank}")
    words = "".join(
        f"2026-11-17 {at},002 INFO [rank2] step {step} loss 2.5\n" for step, at in enumerate(("10:40:00", last))
    )
    diagnosis = written(tmp_path, chaos=killed, rank_2=words, host="hostname: p5-11\nworld_size=4 torch 2.9.1\n")
    assert ("rank-crashed" in causes(diagnosis)) is ended


# --- kernel messages of other hosts, GPUs and processes

OFF_BUS = "NVRM: Xid (PCI:0000:4d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
JOB_STATE = """\
JobId=771204 JobName=pretrain-1b
   JobState=FAILED Reason=NonZeroExitCode Dependency=(null)
   NodeList=gpu-b[03-04] BatchHost=gpu-b03
"""


@pytest.mark.parametrize(("host", "counts"), [("gpu-b17", False), ("gpu-b04", True)])
def test_a_kernels_line_of_a_host_that_the_scheduler_does_not_list_decides_nothing(
    tmp_path: Path, host: str, counts: bool
) -> None:
    diagnosis = written(tmp_path, xids=f"{host}: [Tue Jul 21 15:19:58 2026] {OFF_BUS}\n", scontrol=JOB_STATE)
    assert ("gpu-fell-off-bus" in causes(diagnosis)) is counts


NCCL = "".join(
    f"ax-3:{61000 + rank}:{61300 + rank} [{rank}] NCCL INFO ncclCommInitRankConfig comm 0x5611{rank}ab0 rank {rank} "
    f"nranks 4 cudaDev {rank} nvmlDev {rank} busId {bus}000 commId 0x44ab01929f1e3c77 - Init COMPLETE\n"
    for rank, bus in enumerate(("19", "3b", "4c", "9b"))
)
FAULT = (
    "[rank3]:[E0628 13:07:42.312989925 ProcessGroupNCCL.cpp:2068] [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group "
    "watchdog thread terminated with exception: CUDA error: unspecified launch failure\n"
)
KERNEL = "Jun {day} ax-3 kernel: NVRM: Xid (PCI:0000:{bus}:00): {xid}, pid={pid}, name=python3, {words}\n"
STRANGE = KERNEL.format(day="28 12:40:12", bus="3b", xid=13, pid=50123, words="Graphics SM Warp Exception")
OWN = KERNEL.format(day="28 13:07:42", bus="9b", xid=79, pid=61003, words="GPU has fallen off the bus.")


def test_an_error_of_another_process_on_another_gpu_is_not_the_ranks(tmp_path: Path) -> None:
    diagnosis = written(tmp_path, job=NCCL + FAULT, kernel=STRANGE + OWN)
    assert causes(diagnosis)[0] == "gpu-fell-off-bus"
    assert diagnosis.culprits.ranks == [3]


def test_an_error_on_the_gpu_of_another_rank_does_not_explain_this_one(tmp_path: Path) -> None:
    diagnosis = written(tmp_path, job=NCCL + FAULT, kernel=STRANGE)
    assert diagnosis.verdict is not Verdict.DIAGNOSED and diagnosis.culprits.ranks == []


def test_an_error_on_the_ranks_own_gpu_does(tmp_path: Path) -> None:
    own = KERNEL.format(day="28 13:07:42", bus="9b", xid=13, pid=61003, words="Graphics SM Warp Exception")
    diagnosis = written(tmp_path, job=NCCL + FAULT, kernel=own)
    assert (diagnosis.verdict, causes(diagnosis)[0]) == (Verdict.DIAGNOSED, "gpu-kernel-fault")
    assert diagnosis.culprits.ranks == [3]


PODS = """\
Name:         worker-1
Namespace:    train
Node:         pool-a-19/10.4.2.19
Containers:
  trainer:
    State:          Running
      Started:      Fri, 25 Sep 2026 04:30:11 +0000
{more}    Last State:     Terminated
      Reason:       OOMKilled
      Exit Code:    137
"""
SIDECAR = "    Restart Count:  0\n  fluent-bit:\n    State:          Running\n"


@pytest.mark.parametrize(("more", "decides"), [(SIDECAR, False), ("", True)], ids=["a sidecar", "the only container"])
def test_a_container_beside_others_need_not_be_the_ranks(tmp_path: Path, more: str, decides: bool) -> None:
    diagnosis = written(tmp_path, describe=PODS.format(more=more))
    assert (diagnosis.verdict is Verdict.DIAGNOSED and causes(diagnosis)[0] == "host-oom-killed") is decides


# --- stacks that only say local ranks


@pytest.mark.parametrize(("locals_", "named"), [((0, 1, 2, 3), [2]), ((0, 1, 0, 1), [])], ids=["one host", "two hosts"])
def test_local_ranks_of_command_lines_are_ranks_on_one_host(
    tmp_path: Path, locals_: tuple[int, ...], named: list[int]
) -> None:
    for place, local_rank in enumerate(locals_):
        pid, frame = 31870 + place, "load (dataset.py:77)" if place == 2 else BARRIER
        text = STACK.format(pid=pid, frame=frame).replace("train.py\n", f"train.py --local-rank={local_rank}\n", 1)
        (tmp_path / f"pyspy_{pid}.txt").write_text(text, encoding="utf-8")
    diagnosis = investigate([str(tmp_path)]).diagnose()
    assert sorted(rank for suspect in diagnosis.suspects for rank in suspect.ranks) == named
