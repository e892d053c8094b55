"""Hosts of lab jobs: each is what its scenario says, the machine itself stays as it was."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import ValidationError

from ddx_evals.lab import LabError, LabRun, Scenario, load_scenarios
from ddx_evals.lab.classes import scenarios_by_class, usual_ranks
from ddx_evals.lab.launching import launches, ranks_of
from ddx_evals.lab.machine import Machine, machines
from ddx_evals.lab.place import LabHost
from ddx_evals.lab.wires import cut

made_here = pytest.mark.needs(
    "linux", "root", "ip", "tc", "iptables", "unshare", "nsenter", "prlimit", "mount", "ping", "getent"
)

NODE_A, NODE_B = LabHost(name="node-a"), LabHost(name="node-b")


def scenario(**changes: object) -> Scenario:
    return Scenario.model_validate({**load_scenarios()["second-machine"].model_dump(), **changes})


@contextmanager
def host(tmp_path: Path, **words: object) -> Iterator[Machine]:
    with machines([LabHost.model_validate({"name": "node-a", **words})], tmp_path) as (machine,):
        yield machine


def said(machine: Machine, *argv: str, as_job: bool = True) -> str:
    entering = machine.enter(argv, cwd=Path("/"), as_job=as_job)
    return subprocess.run(entering, capture_output=True, text=True, check=True, timeout=30).stdout


def arrives(machine: Machine, *ping: str) -> bool:
    argv = machine.enter(["ping", "-n", "-c", "1", "-W", "1", *ping], cwd=Path("/"))
    return subprocess.run(argv, capture_output=True, check=False, timeout=30).returncode == 0


def network_namespaces() -> Sequence[str]:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()


# --- what is typed


@pytest.mark.needs("torch")
def test_each_host_starts_its_share_of_the_ranks_and_all_name_the_first() -> None:
    first, second = launches(scenario(hosts=[NODE_A, NODE_B]), 6, 20)
    assert [first.host, second.host] == ["node-a", "node-b"]
    assert {"--nnodes=2", "--node-rank=0", "--nproc-per-node=3", "--master-addr=node-a"} <= set(first.argv)
    assert {"--nnodes=2", "--node-rank=1", "--nproc-per-node=3", "--master-addr=node-a"} <= set(second.argv)
    assert first.log != second.log
    assert ranks_of([NODE_A, NODE_B], 6) == {"node-a": (0, 1, 2), "node-b": (3, 4, 5)}


@pytest.mark.needs("torch")
def test_a_host_on_which_nobody_starts_the_job_is_counted_and_has_no_launcher() -> None:
    idle = LabHost(name="node-b", launches=False)
    (only,) = launches(scenario(hosts=[NODE_A, idle]), 4, 20)
    assert "--nnodes=2" in only.argv


@pytest.mark.needs("torch")
def test_what_one_host_has_set_is_not_set_on_the_other() -> None:
    other = LabHost(
        name="node-b", environment={"GLOO_SOCKET_IFNAME": "ib0"}, launcher_args=("--master-addr=localhost",)
    )
    first, second = launches(scenario(hosts=[NODE_A, other]), 2, 20)
    assert "GLOO_SOCKET_IFNAME" not in first.environment
    assert second.environment["GLOO_SOCKET_IFNAME"] == "ib0"
    assert [argument for argument in second.argv if "master-addr" in argument][-1] == "--master-addr=localhost"


@pytest.mark.needs("torch")
def test_ranks_that_cannot_be_dealt_out_are_refused() -> None:
    with LabRun(scenario(hosts=[NODE_A, NODE_B]), 3) as run, pytest.raises(LabError, match="3 ranks cannot be divided"):
        run.argv  # noqa: B018


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hosts": [NODE_A, NODE_A]}, "two hosts have the same name"),
        ({"hosts": [NODE_A], "unplugged": "node-z"}, "has no node-z"),
        ({"hosts": [{"name": "node-a", "disks_mib": {"/out": 1}}]}, "below the job's"),
        ({"hosts": [{"name": "node-a", "disks_mib": {"../out": 1}}]}, "below the job's"),
        ({"hosts": [{"name": "node a; reboot"}]}, "pattern"),
    ],
)
def test_hosts_that_make_no_sense_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        scenario(**changes)


def test_every_class_has_a_scenario_and_a_number_of_ranks_that_it_knows() -> None:
    classes = scenarios_by_class()
    assert {"dtype", "shape", "dropped-rank", "oom"} <= set(classes)
    for each in classes.values():
        assert not each.ranks or usual_ranks(each) in each.ranks
        assert usual_ranks(each) % max(1, len(each.hosts)) == 0


# --- what is made


@made_here
def test_a_host_has_a_name_an_address_and_names_of_its_own(tmp_path: Path) -> None:
    name = socket.gethostname()
    with host(tmp_path, names={"node-z": "127.0.1.1"}) as machine:
        assert said(machine, "hostname") == "node-a\n"
        assert f"inet {machine.address}/24" in said(machine, "ip", "address", "show", "eth0")
        assert said(machine, "getent", "hosts", "node-z").split() == ["127.0.1.1", "node-z"]
        assert machine.namespace in network_namespaces()
    assert machine.namespace not in network_namespaces()
    assert socket.gethostname() == name


@made_here
def test_a_host_has_the_room_that_its_place_says(tmp_path: Path) -> None:
    with host(tmp_path, shm_mib=16, disks_mib={"out": 2}) as machine:
        sizes = said(machine, "df", "--output=size", "-k", "/dev/shm", str(tmp_path / "out"))
        assert [line.strip() for line in sizes.splitlines()[1:]] == [str(16 << 10), str(2 << 10)]
        outside = subprocess.run(["df", "--output=size", "-k", "/dev/shm"], capture_output=True, text=True, check=True)
    assert str(16 << 10) not in outside.stdout.split()


@made_here
@pytest.mark.skipif(not Path("/sys/fs/cgroup/memory").is_dir(), reason="needs cgroups of version 1")
def test_limits_hold_for_the_job_and_are_seen_by_who_looks_around(tmp_path: Path) -> None:
    with host(tmp_path, memory_mib=96, cpus=0.5, limits={"nofile": "99:99"}) as machine:
        read = ["cat", "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"]
        assert said(machine, *read, as_job=False).split() == [str(96 << 20), "50000"]
        assert said(machine, "bash", "-c", "ulimit -n") == "99\n"
        assert said(machine, "bash", "-c", "ulimit -n", as_job=False) != "99\n"
        greedy = machine.enter([sys.executable, "-c", "held = bytearray(256 << 20)"], cwd=Path("/"))
        assert subprocess.run(greedy, check=False, timeout=60).returncode == -9


@made_here
def test_hosts_reach_each_other_until_the_cable_is_pulled(tmp_path: Path) -> None:
    with machines([NODE_A, NODE_B], tmp_path) as (first, second):
        assert arrives(first, "node-b")
        assert arrives(second, "node-a")
        cut(second.namespace)
        assert not arrives(first, "node-b")


@made_here
def test_what_a_firewall_or_the_switch_drops_does_not_arrive(tmp_path: Path) -> None:
    large = ("-M", "do", "-s", "2000")
    closed = LabHost(name="node-b", mtu=9000, firewall=("-p icmp -m length --length 0:100 -j DROP",))
    narrow = LabHost(name="node-c", mtu=9000, port_mtu=1500)
    open_ = LabHost(name="node-a", mtu=9000)
    with machines([open_, closed, narrow], tmp_path) as (first, _, _):
        assert not arrives(first, "node-b")
        assert arrives(first, *large, "node-b")
        assert arrives(first, "node-c")
        assert not arrives(first, *large, "node-c")


@made_here
def test_a_port_that_another_program_holds_is_taken_there_and_free_here(tmp_path: Path) -> None:
    bind = "import socket; socket.create_server(('', 29476)).close(); print('free')"
    with host(tmp_path, listens=29476) as machine:
        taken = machine.enter([sys.executable, "-c", bind], cwd=Path("/"))
        assert b"already in use" in subprocess.run(taken, capture_output=True, check=False, timeout=30).stderr
        here = subprocess.run([sys.executable, "-c", bind], capture_output=True, text=True, check=True, timeout=30)
    assert here.stdout == "free\n"
