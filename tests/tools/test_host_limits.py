"""Shared memory, limits, disks, memory, and what schedulers say."""

from __future__ import annotations

import pytest
from host_reading import CONSTRUCTED, RECORDED, codes, facts_in, findings_in, findings_of, one

from ddx_tools.model.diagnosis import Severity


def test_shared_memory_of_a_container_and_a_full_one() -> None:
    small = one(findings_of(RECORDED / "shm_64m.txt"), "limits.shm_full")
    assert (small.attributes["size_bytes"], small.attributes["small"], small.attributes["full"]) == (
        64 << 20,
        True,
        False,
    )
    assert small.attributes["certain"] is True
    full = one(findings_of(RECORDED / "shm_512m_full.txt"), "limits.shm_full")
    assert (full.attributes["full"], full.attributes["available_bytes"], full.attributes["small"]) == (True, 0, False)


def test_a_healthy_host_has_shared_memory_disk_and_memory() -> None:
    assert codes(findings_of(RECORDED / "healthy_host.txt")) == {"limits.locked_memory"}


@pytest.mark.parametrize(
    "line",
    [
        "shm              64M     0   64M   0% /dev/shm",
        "tmpfs      65536     0     65536   0% /dev/shm",
        "tmpfs          tmpfs   64M     0   64M   0% /dev/shm",
        "Filesystem Size Used Avail Use% Mounted on\nvery/long/name\n                  64M     0   64M   0% /dev/shm",
        "shm on /dev/shm type tmpfs (rw,nosuid,nodev,noexec,relatime,size=65536k)",
    ],
)
def test_df_in_every_shape(line: str) -> None:
    assert one(findings_in(line), "limits.shm_full").attributes["size_bytes"] == 64 << 20


def test_shared_memory_with_room_raises_nothing() -> None:
    assert findings_in("tmpfs            504G  1.2G  503G   1% /dev/shm\n") == []


def test_locked_memory_as_each_shell_prints_it() -> None:
    bash = "max locked memory           (kbytes, -l) 64\n"
    zsh = "-l: locked-in-memory size (kbytes)      64\n"
    alone = "$ ulimit -l\n64\n"
    process = "Max locked memory         65536                65536                bytes     \n"
    for text in (bash, zsh, alone, process):
        assert one(findings_in(text), "limits.locked_memory").attributes["limit_bytes"] == 65536, text
        assert findings_in(text.replace("65536", "unlimited").replace("64", "unlimited")) == []
    assert one(findings_of(RECORDED / "prlimit.txt"), "limits.locked_memory").attributes["limit_bytes"] == 8 << 20


def test_a_low_limit_alone_is_a_notice() -> None:
    assert one(findings_in("$ ulimit -l\n64\n"), "limits.locked_memory").severity is Severity.NOTICE


def test_a_number_under_another_command_is_no_limit() -> None:
    assert findings_in("$ nproc\n64\n$ ulimit -n\n1024\n") == []


def test_full_disks() -> None:
    found = one(findings_of(RECORDED / "tmp_full.txt"), "limits.resource")
    assert (found.attributes["what"], found.attributes["place"]) == ("disk", "/tmp")
    snap = "/dev/loop3       64M   64M     0 100% /snap/core20/1974\n"
    assert findings_in(snap) == []
    inodes = "Filesystem      Inodes   IUsed IFree IUse% Mounted on\n/dev/sda1      1000000 1000000     0  100% /data\n"
    assert one(findings_in(inodes), "limits.resource").attributes["what"] == "inodes"


def test_the_memory_of_the_host() -> None:
    low = "MemTotal:       24684096 kB\nMemFree:          55924 kB\nMemAvailable:     56752 kB\n"
    assert one(findings_in(low), "limits.resource").attributes["what"] == "host_memory"
    assert facts_in((RECORDED / "healthy_host.txt").read_text(), "memory")


def test_a_pasted_issue_with_several_hosts() -> None:
    found = findings_of(CONSTRUCTED / "pasted_issue.md")
    where = {f.code: (f.hosts, f.evidence[0].line) for f in found}
    assert where == {
        "gpu.topology": (["gpu-3"], 13),
        "limits.shm_full": ([], 6),
        "limits.locked_memory": ([], 8),
        "limits.resource": (["gpu-4"], 21),
    }


# --- schedulers


def test_a_node_on_which_all_jobs_fail() -> None:
    found = findings_of(CONSTRUCTED / "sacct_one_bad_node.txt")
    node = one(found, "host.jobs_failed")
    assert (node.hosts, node.attributes["jobs"], node.attributes["completed_elsewhere"]) == (["gpu-31"], 3, 2)
    states = {f.attributes["state"] for f in found if f.code == "job.scheduler_state"}
    assert states == {"FAILED", "OUT_OF_MEMORY", "CANCELLED"}
    assert one(found, "host.oom_kill").hosts == ["gpu-34"]


def test_a_node_on_which_a_job_ended_well_is_not_blamed() -> None:
    text = (CONSTRUCTED / "sacct_one_bad_node.txt").read_text()
    assert "host.jobs_failed" not in codes(findings_in(text.replace("gpu-32", "gpu-31")))


def test_steps_of_one_job_are_one_failure() -> None:
    text = "JobID State NodeList\n7 FAILED gpu-1\n7.batch FAILED gpu-1\n7.0 FAILED gpu-1\n"
    assert "host.jobs_failed" not in codes(findings_in(text))


@pytest.mark.parametrize(
    "path",
    [CONSTRUCTED / "sacct_healthy.txt", CONSTRUCTED / "kubectl_running.txt", RECORDED / "scontrol_running.txt"],
    ids=str,
)
def test_jobs_that_run_or_ended_well_raise_nothing(path: object) -> None:
    assert findings_of(path) == []  # type: ignore[arg-type]


def test_jobs_are_read_with_their_nodes() -> None:
    jobs = facts_in((RECORDED / "scontrol_running.txt").read_text(), "job_state")
    assert [job["subject"] for job in jobs] == ["3", "3"]
    assert all('"RUNNING"' in job["facts"] and '"fbn[1-3]"' in job["facts"] for job in jobs)


def test_a_drained_node_and_a_pod_that_was_killed() -> None:
    down = one(findings_of(CONSTRUCTED / "scontrol_node_down.txt"), "host.out_of_service")
    assert (down.hosts, down.attributes["reason"]) == (["gpu-31"], "GPU 3 row remap failure")
    found = findings_of(CONSTRUCTED / "kubectl_oomkilled.txt")
    assert one(found, "host.oom_kill").hosts == ["gpu-node-7"]
    assert one(found, "job.scheduler_state").attributes["exit_codes"] == {"trainer": 137}


PODS = """$ kubectl get pods
NAME               READY   STATUS              RESTARTS   AGE
sft9-launcher      1/1     Running             0          6m
sft9-worker-0      1/1     Running             0          6m
sft9-worker-1      0/1     {state}   0          6m
other-worker-0     0/1     Pending             0          2d
"""


@pytest.mark.parametrize(("state", "late"), [("ContainerCreating", True), ("Running", False)])
def test_a_pod_that_has_not_started_is_named_if_others_of_its_job_run(state: str, late: bool) -> None:
    found = findings_in(PODS.format(state=state))
    assert [f.attributes["jobs"] for f in found] == ([["sft9-worker-1"]] if late else [])


@pytest.mark.parametrize(("limit", "below"), [("214748364800", True), ("max", False)])
def test_a_container_that_may_hold_less_than_its_host_is_told(limit: str, below: bool) -> None:
    shown = f"""root@pod-3:/# free -g | head -2
               total        used        free      shared  buff/cache   available
Mem:             503          61         401           2          41         440
root@pod-3:/# cat /sys/fs/cgroup/memory.max
{limit}
"""
    found = [finding.attributes.get("what") for finding in findings_in(shown)]
    assert found == (["cgroup_memory_below_host"] if below else [])
