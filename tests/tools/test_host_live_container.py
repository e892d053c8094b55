"""A live look at limits: cgroups of both versions, quotas, affinity, kills for memory and when they were, ptrace."""

from __future__ import annotations

import pytest
from host_looks import findings_of, findings_of_hosts, processes, text, unavailable
from host_reading import codes, one
from hypothesis import given
from hypothesis import strategies as st
from process_snapshots import row, snapshot, torchrun_env

from ddx_tools.model.diagnosis import Severity
from ddx_tools.probes.host.capture import cgroup_directories
from ddx_tools.probes.host.text_rows import fact_rows
from ddx_tools.sources.raw import RawItem

V1, V2 = "/sys/fs/cgroup/memory/job", "/sys/fs/cgroup/job"
SELF = (
    "/proc/self/status:Uid:\t1000\t1000\n/proc/self/status:CapEff:\t{caps}\n"
    "/proc/self/status:Cpus_allowed_list:\t0-15\n"
)
ROOT_CAPS, NO_CAPS = "000001ffffffffff", "0000000000000000"


def ranks_on(*pids: int, began: float = 1_500.0) -> dict[str, object]:
    rows = [
        row(pid, 1, "python train.py", env=torchrun_env(n, len(pids)), create_time=began) for n, pid in enumerate(pids)
    ]
    return snapshot(*rows) | {"now": 2_000.0}


MEMORY = {
    V1: "{place}/memory.limit_in_bytes:{limit}\n{place}/memory.usage_in_bytes:1000000000\n"
    "{place}/memory.stat:total_inactive_file {idle}\n",
    V2: "{place}/memory.max:{limit}\n{place}/memory.current:1000000000\n{place}/memory.stat:inactive_file {idle}\n",
}


@pytest.mark.parametrize("place", [V1, V2])
def test_memory_without_room_is_named_unless_the_kernel_can_drop_files(place: str) -> None:
    def named(limit: object, idle: int) -> set[str]:
        return codes(findings_of(text(MEMORY[place].format(place=place, limit=limit, idle=idle))))

    assert named(1_010_000_000, idle=0) == {"limits.resource"}
    assert named(1_010_000_000, idle=500_000_000) == set()
    assert named("max" if place == V2 else 9223372036854771712, idle=0) == set()


def test_counters_of_kills_in_both_versions() -> None:
    v1 = f"{V1}/memory.oom_control:oom_kill_disable 0\n{V1}/memory.oom_control:oom_kill 2\n"
    v2 = f"{V2}/memory.max:1073741824\n{V2}/memory.events:oom 1\n{V2}/memory.events:oom_kill 2\n"
    for files in (v1, v2):
        found = one(findings_of(text(files)), "host.oom_kill")
        assert (found.attributes["kills"], found.evidence[0].quote.rsplit(":", 1)[-1]) == (2, "oom_kill 2")
        assert codes(findings_of(text(files.replace("oom_kill 2", "oom_kill 0")))) == set()


KILL = (
    "[  {at:.6f}] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job,"
    "task_memcg=/job,task=python3,pid=375,uid=0\n"
    "[  {at:.6f}] Memory cgroup out of memory: Killed process 375 (python3) total-vm:221444kB, anon-rss:204160kB\n"
)


def test_a_kill_before_the_job_began_is_not_one_of_the_job() -> None:
    job = processes(ranks_on(41, 42, began=1_500.0))
    group = text(f"{V1}/memory.oom_control:oom_kill 1\n")
    during, before = (text("[    0.000000] Linux\n" + KILL.format(at=at)) for at in (600.0, 300.0))
    assert one(findings_of(job, group, during), "host.oom_kill").attributes["pid"] == 375
    # The log is whole since boot and tells when: the counter has nothing to add.
    assert "host.oom_kill" not in codes(findings_of(job, group, before))


def test_a_kill_in_another_container_is_not_one_of_the_job() -> None:
    job, log = processes(ranks_on(41, 42)), text("[    0.000000] Linux\n" + KILL.format(at=600.0))
    assert "host.oom_kill" in codes(findings_of(job, text(f"{V1}/memory.oom_control:oom_kill 1\n"), log))
    other = text(
        "/sys/fs/cgroup/memory/other/memory.oom_control:oom_kill 0\n"
        "/sys/fs/cgroup/memory/memory.oom_control:oom_kill 0\n"
    )
    assert "host.oom_kill" not in codes(findings_of(job, other, log))


def test_the_counter_counts_where_the_log_cannot_be_read() -> None:
    group = text(f"{V1}/memory.oom_control:oom_kill 1\n")
    found = findings_of(processes(ranks_on(41, 42)), group, unavailable("kernel log"))
    assert one(found, "host.oom_kill").severity is Severity.WARNING


@pytest.mark.parametrize(
    ("first", "then", "held"),
    [
        ("nr_periods 100\nnr_throttled 0", "nr_periods 110\nnr_throttled 9", True),
        ("nr_periods 100\nnr_throttled 90", "nr_periods 110\nnr_throttled 90", False),
    ],
)  # fmt: skip
def test_a_quota_that_holds_back_between_two_readings(first: str, then: str, held: bool) -> None:
    def stat(lines: str) -> str:
        return "".join(f"/sys/fs/cgroup/job/cpu.stat:{line}\n" for line in lines.split("\n"))

    found = findings_of(text("/sys/fs/cgroup/job/cpu.max:200000 100000\n" + stat(first)), text(stat(then)))
    assert codes(found) == ({"limits.cpu_throttled"} if held else set())
    if held:
        assert one(found, "limits.cpu_throttled").attributes == {
            "cpus": 2.0, "share": 0.9, "how": "between_readings", "place": "/sys/fs/cgroup/job", "basis": "host",
        }  # fmt: skip


@pytest.mark.parametrize(("of_the_other", "free"), [(3, ["b"]), (580, None)], ids=["only one host", "both hosts"])
def test_a_quota_names_the_ranks_that_it_holds_back_and_the_hosts_without(
    of_the_other: int, free: list[str] | None
) -> None:
    def look(quota: str, throttled: int, first: int) -> list[RawItem]:
        job = snapshot(
            row(41 + first, 1, "python train.py", env=torchrun_env(first, 4)),
            row(42 + first, 1, "python train.py", env=torchrun_env(first + 1, 4)),
        )
        place = "/sys/fs/cgroup/job"
        stat = f"{place}/cpu.stat:nr_periods 600\n{place}/cpu.stat:nr_throttled {throttled}\n"
        return [processes(job | {"now": 2_000.0}), text(f"{place}/cpu.max:{quota} 100000\n{stat}")]

    found = findings_of_hosts(a=look("60000", 570, 0), b=look("400000", of_the_other, 2))
    held = [each for each in found if each.code == "limits.cpu_throttled"]
    assert [(each.hosts, each.ranks, each.attributes.get("free_hosts")) for each in held][:1] == [(["a"], [0, 1], free)]
    assert len(held) == (1 if free else 2)


@pytest.mark.parametrize(("cpus", "crowded"), [("0", True), ("0-1", False), ("0-15", False)])
def test_ranks_that_share_one_cpu(cpus: str, crowded: bool) -> None:
    pinned = "".join(f"/proc/{pid}/status:Cpus_allowed_list:\t{cpus}\n" for pid in (41, 42))
    found = findings_of(processes(ranks_on(41, 42)), text(pinned + SELF.format(caps=ROOT_CAPS)))
    assert ("limits.cpu_affinity" in codes(found)) is crowded
    if crowded:
        assert one(found, "limits.cpu_affinity").ranks == [0, 1]


@pytest.mark.parametrize(("held", "most", "near"), [(1000, 1024, True), (300, 1024, False), (5000, -1, False)])
def test_a_rank_that_holds_nearly_all_the_files_it_may(held: int, most: int, near: bool) -> None:
    job = ranks_on(10, 11)
    for process, files in zip(job["processes"], (20, held), strict=True):  # type: ignore[call-overload]
        process |= {"open_files": files, "open_files_limit": most}
    found = findings_of(processes(job, 10))
    assert [(one.attributes["what"], one.ranks) for one in found] == ([("open_files", [1])] if near else [])


@pytest.mark.parametrize(
    ("scope", "caps", "readable"),
    [("0", NO_CAPS, True), ("1", NO_CAPS, False), ("1", ROOT_CAPS, True), ("3", ROOT_CAPS, False)],
)  # fmt: skip
def test_whether_stacks_can_be_read(scope: str, caps: str, readable: bool) -> None:
    look = text(SELF.format(caps=caps) + f"/proc/sys/kernel/yama/ptrace_scope:{scope}\n")
    assert ("host.stacks_unreadable" in codes(findings_of(look))) is not readable


def test_locked_memory_does_not_matter_without_rdma() -> None:
    limits = text("/proc/self/limits:Max locked memory         8388608              8388608              bytes     \n")
    assert codes(findings_of(limits)) == {"limits.locked_memory"}
    assert codes(findings_of(limits, unavailable("rdma"))) == set()


def test_where_the_files_of_a_cgroup_are() -> None:
    both = "/proc/7/cgroup:4:memory:/a/b\n/proc/7/cgroup:2:cpu,cpuacct:/c\n/proc/7/cgroup:0::/d\n"
    found = cgroup_directories(both)
    assert found[:3] == [f"/sys/fs/cgroup/memory{path}" for path in ("", "/a", "/a/b")]
    assert {"/sys/fs/cgroup/cpu/c", "/sys/fs/cgroup/d", "/sys/fs/cgroup/unified/d"} <= set(found)
    assert cgroup_directories("/proc/7/cgroup:0::/../../x\n") == [
        f"/sys/fs/cgroup{path}" for path in ("", "/x", "/unified", "/unified/x")
    ]


PIECES = st.sampled_from(
    ["/sys/fs/cgroup/a/cpu.max:", "/sys/fs/cgroup/a/memory.stat:", "/proc/1/status:", "/proc/1/limits:",
     "Cpus_allowed_list:", "CapEff:\t", "9-", "0-3,", "max", " ", "-1", "9" * 30, "\n",
     "/sys/bus/pci/devices/0000:3b:00.0/class:0x0302", ":", "\0", "/sys/kernel/iommu_groups/1/type:", "DMA",
     "Max locked memory 1 ", "٣"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=40))
def test_no_files_of_the_kernel_can_hurt_the_reader(pieces: list[str]) -> None:
    text_of_it = "/sys/fs/cgroup/\n" + "".join(pieces)
    assert all(row["topic"] for row in fact_rows(text_of_it.encode("utf-8", "surrogatepass"), "t", "t"))
