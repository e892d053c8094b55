"""What lies beside a job's files and is of another job, another run, or a machine that the job does not use."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Diagnosis, Verdict
from ddx_tools.parsers.logs.log_lines import lines_of
from ddx_tools.parsers.logs.log_prefixes import Labels
from ddx_tools.parsers.logs.new_starts import new_start
from ddx_tools.parsers.logs.step_lines import step_facts
from ddx_tools.probes.host.scheduler import workload_of

OOM = (
    "[Tue Nov 10 {at} 2026] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    "oom_memcg={memcg},task_memcg={memcg},task={name},pid={pid},uid=1000\n"
    "[Tue Nov 10 {at} 2026] Memory cgroup out of memory: Killed process {pid} ({name}) total-vm:512334112kB, "
    "anon-rss:401220316kB, file-rss:2204kB, shmem-rss:10240kB\n"
)
XID = "[Tue Nov 10 {at} 2026] NVRM: Xid (PCI:0000:{bus}:00): {xid}, pid={pid}, name=python3, {words}\n"


NCCL = (
    "{host}:{pid}:{pid} [{local}] NCCL INFO ncclCommInitRank comm 0x55d9455faddc rank {rank} nranks 4 cudaDev {local} "
    "nvmlDev {local} busId {bus} commId 0x6be0f3517c8a1d20 - Init COMPLETE\n"
)
JOB_OF_TWO_HOSTS = "".join(
    NCCL.format(
        host=f"slinky-0{3 + rank // 2}", pid=20410 + rank, local=rank % 2, rank=rank, bus=("19000", "bb000")[rank % 2]
    )
    for rank in range(4)
)


def diagnosed(folder: Path, files: dict[str, str]) -> Diagnosis:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return investigate([str(folder)]).diagnose()


def causes(diagnosis: Diagnosis) -> list[str]:
    return [cause.id for cause in diagnosis.causes]


def steps(rank: int, first: int, begin: str, count: int, host: str = "gpu-12") -> str:
    """Lines of `count` steps, ten seconds apart."""
    hour, minute = map(int, begin.split(":"))
    lines = []
    for number in range(count):
        at = (hour * 60 + minute) * 60 + 10 * number
        clock = f"{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}"
        lines.append(
            f"2026-11-10 {clock} {host} rank={rank} step {first + number}/50000 loss 3.0{number % 10} (9.9s)\n"
        )
    return "".join(lines)


def raised(rank: int, at: str) -> str:
    return (
        f"2026-11-10 {at} gpu-14 rank={rank} step 1017/50000 loss nan (9.9s)\n"
        f"[rank{rank}]: Traceback (most recent call last):\n"
        f'[rank{rank}]:   File "train.py", line 118, in main\n'
        f"[rank{rank}]:     assert torch.isfinite(loss)\n"
        f"[rank{rank}]: AssertionError\n"
    )


# --- the job went on after the end of a process


@pytest.mark.parametrize(("begin", "first", "counts"), [("15:31", 2400, False), ("14:12", 1009, True)])
def test_a_rank_that_failed_before_its_peers_went_on_is_of_another_job(
    tmp_path: Path, begin: str, first: int, counts: bool
) -> None:
    files = {f"rank{rank}.log": steps(rank, first, begin, 8) for rank in range(3)}
    diagnosis = diagnosed(tmp_path, files | {"rank3.log": steps(3, 1010, "14:12", 7, "gpu-14") + raised(3, "14:13:10")})
    assert ("program-error" in causes(diagnosis)) is counts
    assert (diagnosis.verdict is Verdict.DIAGNOSED) is counts


@pytest.mark.parametrize(
    ("at", "pid", "counts"),
    [("12:17:31", 911, False), ("14:12:50", 846, True), ("12:17:31", 846, True)],
    ids=["long before the last steps", "with the rank", "a clock that is off"],
)
def test_a_process_that_ended_before_the_last_steps_was_none_of_the_job(
    tmp_path: Path, at: str, pid: int, counts: bool
) -> None:
    log = steps(0, 9100, "14:11", 12) + (
        "E1110 14:12:53.310000 811 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) "
        "local_rank: 5 (pid: 846) of binary: /usr/bin/python3\n"
    )
    kernel = OOM.format(at=at, memcg="/kubepods/x", name="python3", pid=pid)
    diagnosis = diagnosed(tmp_path, {"train.log": log, "dmesg.txt": kernel})
    assert ("The kernel killed" in " ".join(claim.claim for claim in diagnosis.evidence)) is counts
    assert (causes(diagnosis)[:1] == ["host-oom-killed"] and diagnosis.verdict is Verdict.DIAGNOSED) is counts


@pytest.mark.parametrize("xid", [48, 94, 13, 43])
def test_a_gpu_error_that_ended_a_process_before_the_last_steps_is_not_blamed(tmp_path: Path, xid: int) -> None:
    kernel = XID.format(at="12:17:31", bus="ab", xid=xid, pid=846, words="Contained: L2 (0x2).")
    diagnosis = diagnosed(tmp_path, {"train.log": steps(0, 9100, "14:11", 12), "dmesg.txt": kernel})
    assert diagnosis.verdict is not Verdict.DIAGNOSED
    assert not diagnosis.causes


def test_a_rendezvous_shows_a_start() -> None:
    line = (
        "I1110 12:02:30.700000 900 torch/distributed/elastic/agent/server/api.py:525] [default] Rendezvous complete "
        "for workers. Result:"
    )
    (parsed,) = lines_of(1, line.encode(), Labels(line.encode()))
    start = new_start(parsed)
    assert start is not None
    assert start.launcher == 900


# --- processes, pods and jobs of others


@pytest.mark.parametrize(
    ("name", "counts"), [("java", False), ("vector", False), ("python3", True), ("pt_data_worker", True)]
)
def test_a_kill_of_another_program_for_memory_does_not_explain_closed_connections(
    tmp_path: Path, name: str, counts: bool
) -> None:
    log = steps(0, 8050, "14:11", 8) + (
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3699, remote process exited "
        "or there was a network error, NCCL version 2.27.3\n"
        "[rank0]: Last error:\n[rank0]: socketProgress: Connection closed by remote peer 10.60.4.19<41182>\n"
    )
    kernel = OOM.format(at="14:12:11", memcg="/kubepods/x", name=name, pid=4410)
    diagnosis = diagnosed(tmp_path, {"rank0.log": log, "dmesg.txt": kernel})
    assert (causes(diagnosis)[:1] == ["host-oom-killed"] and diagnosis.verdict is Verdict.DIAGNOSED) is counts


PODS = """\
NAMESPACE   NAME                   READY   STATUS    RESTARTS      AGE     NODE
nlp-pt      llm-pt-a-master-0      1/1     Running   0             9h      pool-9mzt
nlp-sft     llm-sft-b-worker-3     1/1     Running   1 (19m ago)   3h50m   pool-x2kd
"""
POD = """\
Name:             {pod}
Namespace:        nlp
Node:             pool-x2kd/10.128.4.31
Status:           Running
Containers:
  pytorch:
    State:          Running
      Started:      Tue, 10 Nov 2026 14:20:40 +0000
    Last State:     Terminated
      Reason:       OOMKilled
      Exit Code:    137
    Restart Count:  1
"""


@pytest.mark.parametrize(("pod", "counts"), [("llm-sft-b-worker-3", False), ("llm-pt-a-master-0", True)])
def test_a_pod_of_another_workload_than_the_logs_is_not_judged(tmp_path: Path, pod: str, counts: bool) -> None:
    files = {f"llm-pt-a-rank{rank}.log": steps(rank, 6120, "14:11", 8) for rank in range(4)}
    diagnosis = diagnosed(tmp_path, files | {"pods.txt": PODS, "describe.txt": POD.format(pod=pod)})
    assert (diagnosis.verdict is Verdict.DIAGNOSED) is counts
    assert ("host-oom-killed" in causes(diagnosis)) is counts


EXPORTER = """\
# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.
# TYPE DCGM_FI_DEV_XID_ERRORS gauge
DCGM_FI_DEV_XID_ERRORS{{gpu="0",Hostname="node-3",namespace="vision",pod="ddp-vit-l-worker-1"}} {own}
DCGM_FI_DEV_XID_ERRORS{{gpu="5",Hostname="node-3",namespace="recsys",pod="two-tower-v9-worker-2"}} {other}
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{{gpu="0",Hostname="node-3",namespace="vision",pod="ddp-vit-l-worker-1"}} 1755
"""


@pytest.mark.parametrize(("own", "other", "counts"), [(0, 79, False), (79, 0, True)])
def test_a_gpu_of_another_pod_is_not_blamed(tmp_path: Path, own: int, other: int, counts: bool) -> None:
    page = EXPORTER.format(own=own, other=other)
    diagnosis = diagnosed(tmp_path, {"ddp-vit-l-worker-1.log": steps(8, 6120, "14:11", 8), "metrics.txt": page})
    assert (causes(diagnosis)[:1] == ["gpu-fell-off-bus"]) is counts


SACCT = """\
JobID            User      JobName      State ExitCode               Start                 End         NodeList
------------ -------- ------------ ---------- -------- ------------------- ------------------- ----------------
66190          pcosta     ssl-vitg  {own}      0:0 2026-11-10T11:19:20 2026-11-10T14:12:19      vx[21-22]
66213           rlind     cfd-surr     FAILED      1:0 2026-11-10T14:15:05 2026-11-10T17:44:38             vx22
"""


def test_a_completed_job_is_healthy_whatever_the_next_tenant_met(tmp_path: Path) -> None:
    kernel = XID.format(at="17:44:30", bus="4e", xid=48, pid=90577, words="DBE") + XID.format(
        at="17:44:30", bus="4e", xid=63, pid=90577, words="Row Remapper: New row marked for remapping"
    )
    files = {
        "ssl_66190.out": steps(0, 12910, "14:10", 12),
        "dmesg.txt": kernel,
        "sacct.txt": SACCT.format(own="COMPLETED"),
    }
    diagnosis = diagnosed(tmp_path, files)
    assert diagnosis.verdict is Verdict.HEALTHY
    assert "66190" in diagnosis.headline
    assert "66213" not in diagnosis.headline


@pytest.mark.parametrize(("job", "counts"), [("771204", False), ("66190", True)])
def test_a_kill_in_the_control_group_of_another_slurm_job_is_not_blamed(tmp_path: Path, job: str, counts: bool) -> None:
    memcg = f"/system.slice/slurmstepd.scope/job_{job}/step_0/user"
    files = {
        "slurm-66190.out": steps(0, 12910, "14:10", 12) + "srun: error: vx21: task 0: Killed\n",
        "dmesg.txt": OOM.format(at="14:12:02", memcg=memcg, name="python3", pid=588120),
        "sacct.txt": SACCT.format(own="  FAILED "),
    }
    diagnosis = diagnosed(tmp_path, files)
    assert (causes(diagnosis)[:1] == ["host-oom-killed"] and diagnosis.verdict is Verdict.DIAGNOSED) is counts


@pytest.mark.parametrize(
    ("end", "verdict"), [("runner: torchrun exited with code 0\n", Verdict.HEALTHY), ("", Verdict.DIAGNOSED)]
)
def test_what_failed_beside_a_job_that_exited_with_0_is_none_of_it(tmp_path: Path, end: str, verdict: Verdict) -> None:
    pool = (
        "sandbox[4] cand=b38c4be4 exit=1\nTraceback (most recent call last):\n"
        '  File "/box/cand_b38c4be4.py", line 19, in <module>\n    print(solve(*map(int, input().split())))\n'
        "IndexError: list index out of range\n"
    )
    diagnosis = diagnosed(tmp_path, {"driver.log": steps(0, 190, "14:11", 8) + end, "sandbox_pool.log": pool})
    assert diagnosis.verdict is verdict


def test_of_two_runs_of_torchrun_the_last_one_counts(tmp_path: Path) -> None:
    failed = {f"logs/ocr_0513_w3k0zq1v/attempt_0/{rank}/stderr.log": steps(rank, 10, "09:11", 8) for rank in range(4)}
    failed["logs/ocr_0513_w3k0zq1v/attempt_0/3/stderr.log"] += raised(3, "09:12:20")
    now = {f"logs/ocr_0514_8h2mcn5r/attempt_0/{rank}/stderr.log": steps(rank, 10, "14:11", 8) for rank in range(4)}
    assert diagnosed(tmp_path / "one", failed).verdict is Verdict.DIAGNOSED
    both = diagnosed(tmp_path / "two", failed | now)
    assert both.verdict is not Verdict.DIAGNOSED
    assert any("ocr_0513" in missing.what for missing in both.missing)


# --- warnings about machines while the job makes steps


@pytest.mark.parametrize(("host", "counts"), [("slinky-09", False), ("slinky-04", True)])
def test_a_warning_about_a_host_of_others_decides_nothing_while_the_job_makes_steps(
    tmp_path: Path, host: str, counts: bool
) -> None:
    page = EXPORTER.format(own=0, other=43).replace("node-3", host)
    log = JOB_OF_TWO_HOSTS + "slinky-04:20413:20413 [1] NCCL INFO Using network IB\n" + steps(0, 6120, "14:11", 8)
    diagnosis = diagnosed(tmp_path, {"train.log": log, "metrics.txt": page})
    assert (diagnosis.verdict is Verdict.DIAGNOSED) is counts
    assert bool(diagnosis.causes) is counts


# --- which rank a message or a file is of


def test_a_kernel_log_that_is_named_for_a_host_of_the_job_is_of_it(tmp_path: Path) -> None:
    kernel = XID.format(at="14:12:03", bus="bb", xid=79, pid=20413, words="GPU has fallen off the bus.")
    diagnosis = diagnosed(tmp_path, {"job.log": JOB_OF_TWO_HOSTS + steps(0, 1, "14:11", 6), "dmesg.slinky-04": kernel})
    assert causes(diagnosis)[:1] == ["gpu-fell-off-bus"]
    assert diagnosis.culprits.ranks == [3]


@pytest.mark.parametrize(("host", "rank"), [("slinky-03", [1]), ("slinky-04", [])])
def test_a_slurm_task_on_another_host_than_the_rank_of_its_number_is_no_rank(
    tmp_path: Path, host: str, rank: list[int]
) -> None:
    log = JOB_OF_TWO_HOSTS + steps(0, 1, "14:11", 6) + f"srun: error: {host}: task 1: Exited with exit code 1\n"
    with_log = diagnosed(tmp_path, {"job.log": log})
    assert [each for suspect in with_log.suspects for each in suspect.ranks] == rank


def test_ranks_on_hosts_of_two_names_do_not_share_one(tmp_path: Path) -> None:
    edge = (
        "{host}:2041{rank}:20801 [{local}] NCCL INFO Channel 02/0 : {rank}[{local}] -> {peer}[{other}] via "
        "P2P/CUMEM/read\n"
    )
    text = edge.format(host="slinky-03", rank=1, local=1, peer=2, other=0) + edge.format(
        host="slinky-04", rank=2, local=0, peer=3, other=1
    )
    assert "duplicate-host-identity" not in causes(diagnosed(tmp_path, {"job.log": JOB_OF_TWO_HOSTS + text}))


def test_a_rank_aborted_after_it_lost_a_peer_is_not_to_blame(tmp_path: Path) -> None:
    lost = (
        "[rank{rank}]:[E1110 14:12:10.362864371 ProcessGroupNCCL.cpp:552] [Rank {rank}] Collective WorkNCCL("
        "SeqNum=44013, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) raised the following async "
        "exception: NCCL error: remote process exited or there was a network error, NCCL version 2.21.5\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "Last error:\nsocketProgress: Connection closed by remote peer hgx-a07<56134>\n"
    )
    summary = (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        + "=" * 60
        + "\npretrain.py FAILED\n"
        + "-" * 60
        + "\nFailures:\n  <NO_OTHER_FAILURES>\n"
        + "-" * 60
        + "\nRoot Cause (first observed failure):\n[0]:\n"
        "  time      : 2026-11-10_14:12:12\n  host      : hgx-a08\n  rank      : 2 (local_rank: 2)\n"
        "  exitcode  : -6 (pid: 51212)\n  error_file: <N/A>\n  traceback : Signal 6 (SIGABRT) received by PID 51212\n"
        + "=" * 60
        + "\n"
    )
    files = {f"rank{rank}.log": steps(rank, 1010, "14:11", 7) + lost.format(rank=rank) for rank in (0, 2, 3)}
    files |= {"rank1.log": steps(1, 1010, "14:11", 7) + raised(1, "14:12:10"), "launcher.log": summary}
    diagnosis = diagnosed(tmp_path, files)
    assert [suspect.ranks for suspect in diagnosis.suspects] == [[1]]


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("it 21200 ctc 1.2895", 21200),
        ("12: it 12925 dino_loss 6.8119 koleo -1.1", 12925),
        ("I tried it 3 times", None),
        ("we ran it 2 hours later and it 3 failed 5", None),
    ],
)
def test_steps_that_are_called_it(text: str, step: int | None) -> None:
    facts = step_facts(text)
    assert (facts.step if facts else None) == step


@pytest.mark.parametrize(("nodes", "counts"), [("juno-g[03-04]", False), ("juno-g02", True)])
def test_a_job_of_the_same_number_on_other_nodes_is_another(tmp_path: Path, nodes: str, counts: bool) -> None:
    queue = "JOBID   NAME        ST  TIME     NODELIST\n66190   ssl-vitg    R   1:23:40  juno-g[01-02]\n"
    table = SACCT.format(own="OUT_OF_MEMORY").replace("vx[21-22]", nodes).replace("66213", "66190.0")
    files = {"slurm-66190.out": steps(0, 12910, "14:10", 12), "squeue.txt": queue, "sacct.txt": table}
    diagnosis = diagnosed(tmp_path, files)
    assert ("host-oom-killed" in causes(diagnosis)) is counts


@pytest.mark.parametrize(
    ("host", "size", "counts"),
    [("gpu-b09", 4, False), ("gpu-b03", 4, True), ("gpu-b09", 8, True), ("bmc.site", 4, True)],
    ids=["another host", "the host", "ranks without logs", "a name of another kind"],
)
def test_kernels_of_hosts_without_a_folder_of_logs_are_not_judged_if_all_ranks_have_logs(
    tmp_path: Path, host: str, size: int, counts: bool
) -> None:
    fallen = "Nov 10 14:12:{at} {host} kernel: NVRM: Xid (PCI:0000:07:00): {xid}, pid=1201, name=python, {words}\n"
    files = {
        f"gpu-b0{2 + node}/train.log": f"world_size={size}\n"
        + "".join(steps(2 * node + i, 10, "14:11", 7) for i in (0, 1))
        for node in range(2)
    }
    files["gpu-b02/journal.txt"] = fallen.format(at="01", host="gpu-b02", xid=63, words="Row Remapper: New row")
    files["misc/dmesg.txt"] = fallen.format(at="02", host=host, xid=79, words="GPU has fallen off the bus.")
    assert ("gpu-fell-off-bus" in causes(diagnosed(tmp_path, files))) is counts


# --- what does not show that a failure was another's

LATER = {
    "an evaluation goes on": {"eval.log": steps(0, 9, "14:05", 200).replace("rank=0 step", "eval step")},
    "another job goes on": {
        "vit/train.log": steps(0, 9, "13:40", 400, "vx9").replace("loss", "top1").replace("rank=0 ", "")
    },
    "an uploader exits with 0": {"rank0.log": "uploader: aws s3 sync exited with code 0\n"},
    "a wrapper ends with 0": {
        "rank0.log": "srun: error: gpu-12: task 3: Exited with exit code 1\n+ true\nexit code: 0\n"
    },
    "one of two launchers exits with 0": {
        "rank0.log": "torchrun exited with code 0\n",
        "node1.log": "torchrun exited with code 1\n",
    },
}


@pytest.mark.parametrize("more", LATER.values(), ids=LATER.keys())
def test_a_failure_with_which_the_jobs_steps_stopped_counts(tmp_path: Path, more: dict[str, str]) -> None:
    files = {f"rank{rank}.log": steps(rank, 1009, "14:12", 8) for rank in range(3)}
    files["rank3.log"] = steps(3, 1010, "14:12", 7, "gpu-14") + raised(3, "14:13:10")
    for name, text in more.items():
        files[name] = files.get(name, "") + text
    diagnosis = diagnosed(tmp_path, files)
    assert diagnosis.verdict is Verdict.DIAGNOSED
    assert diagnosis.culprits.ranks == [3]


def test_an_exception_without_a_date_is_not_as_old_as_the_start_of_its_log(tmp_path: Path) -> None:
    error = 'Traceback (most recent call last):\n  File "train.py", line 60, in step\nValueError: too long\n'
    files = {
        "rank0.log": steps(0, 1, "13:21", 300),
        "rank3.log": "2026-11-10 13:20:07 gpu-12 rank=3 starting\n"
        + "".join(f"[rank3]: {x}\n" for x in error.splitlines()),
    }
    assert diagnosed(tmp_path, files).culprits.ranks == [3]


def test_a_rank_that_an_asynchronous_job_misses_later_counts(tmp_path: Path) -> None:
    waits = (
        "[rank0]:[E1110 15:03:20.1 ProcessGroupNCCL.cpp:552] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=812, OpType=BROADCAST, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800071 "
        "milliseconds before timing out.\n"
    )
    rollout = steps(4, 300, "14:05", 40).replace("step", "rollout step") + raised(4, "14:11:40").replace(
        "step 1017", "x"
    )
    files = {"rank0.log": steps(0, 1000, "14:05", 168) + waits, "rank4.log": rollout}
    assert diagnosed(tmp_path, files).culprits.ranks == [4]


@pytest.mark.parametrize("log", ["gpt_h66190_rank0.log", "rank66190.log"])
def test_a_number_in_a_name_is_not_always_a_job(tmp_path: Path, log: str) -> None:
    memcg = "/system.slice/slurmstepd.scope/job_66213/step_0/user"
    files = {
        log: steps(0, 12910, "14:10", 12),
        "dmesg.txt": OOM.format(at="14:12:02", memcg=memcg, name="python3", pid=588120),
        "sacct.txt": SACCT.format(own="COMPLETED").replace("  FAILED", "OUT_OF_M"),
    }
    diagnosis = diagnosed(tmp_path, files)
    assert diagnosis.verdict is not Verdict.HEALTHY
    assert "host-oom-killed" in causes(diagnosis)


def test_runs_of_torchrun_at_the_same_time_are_of_one_job(tmp_path: Path) -> None:
    files = {f"logs/trainer_w3k0zq1v/attempt_0/{rank}/stderr.log": steps(rank, 10, "14:11", 8) for rank in range(2)}
    files["logs/rollout_8h2mcn5r/attempt_0/3/stderr.log"] = steps(3, 1010, "14:11", 8) + raised(3, "14:12:20")
    assert diagnosed(tmp_path, files).culprits.ranks == [3]


@pytest.mark.parametrize(
    ("pod", "workload"),
    [
        ("llm-pt-a-master-0", "llm-pt-a"),
        ("llm-pre-0-x7kzp", "llm-pre"),
        ("mtp-2", "mtp"),
        ("train", "train"),
        ("a" + "-1234567890" * 40 + "-x", "a" + "-1234567890" * 40 + "-x"),
    ],
)
def test_the_workload_of_a_pod(pod: str, workload: str) -> None:
    assert workload_of(pod) == workload


POD_OF_A_DAY = """\
Name:             gpt-2
Namespace:        ml
Containers:
  main:
    State:          Running
      Started:      Tue, {day} May 2026 22:10:39 +0000
    Last State:     Terminated
      Reason:       OOMKilled
      Exit Code:    137
      Finished:     Tue, {day} May 2026 22:10:09 +0000
"""


@pytest.mark.parametrize(("day", "verdict"), [(19, Verdict.DIAGNOSED), (12, Verdict.UNDECIDED)])
def test_a_container_that_ended_days_before_is_of_an_earlier_job(day: int, verdict: Verdict, tmp_path: Path) -> None:
    log = "".join(f"2026-05-19T22:0{minute}:33Z step {minute} loss 2.1\n" for minute in range(9))
    files = {"gpt-0.log": log, "describe.txt": POD_OF_A_DAY.format(day=day)}
    assert diagnosed(tmp_path, files).verdict is verdict


@pytest.mark.parametrize(
    ("ranks", "verdict"), [((3,), Verdict.DIAGNOSED), (tuple(range(8)), Verdict.UNDECIDED)], ids=["one", "all"]
)
def test_a_signal_that_all_ranks_got_at_once_is_nobodys_fault(
    ranks: tuple[int, ...], verdict: Verdict, tmp_path: Path
) -> None:
    steps = "".join(f"2026-11-04 10:5{minute}:22 step {10 * minute} loss 2.4\n" for minute in range(4))
    ends = "".join(f"srun: error: n1: task {rank}: Terminated\n" for rank in ranks)
    said = diagnosed(tmp_path, {"slurm-8831.out": steps + ends})
    assert said.verdict is verdict
    assert verdict is Verdict.DIAGNOSED or not said.culprits.ranks
