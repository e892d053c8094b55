"""Faults of a machine, made for real in namespaces and cgroups, and `ddx host` in the midst of them."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

DDX = str(Path(sys.executable).with_name("ddx"))
LOGS = Path(__file__).parents[1] / "fixtures" / "logs"
CGROUPS = Path("/sys/fs/cgroup")

pytestmark = [pytest.mark.e2e, pytest.mark.needs("linux", "root", "unshare")]

_WAITING = "import sys; print('ready', flush=True); sys.stdin.read()"
_BUSY = "print('ready', flush=True)\nwhile True: pass"
_GREEDY = "held = bytearray(256 << 20)"
"""More than the cgroup may hold: the kernel ends it."""


def in_namespaces(kinds: list[str], script: str) -> str:
    """What a shell script prints that runs in namespaces of its own; mounts of it are seen by nobody else."""
    argv = ["unshare", *kinds, "bash", "-ec", f"mount --make-rprivate /\n{script}"]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout


def findings(printed: str) -> dict[str, dict[str, Any]]:
    """By code, of what `ddx host --json` printed."""
    return {found["code"]: found for found in json.loads(printed)["findings"]}


def looked(*target: str) -> dict[str, dict[str, Any]]:
    argv = [DDX, "host", *target, "--json"]
    return findings(subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60).stdout)


def leading_cause(*files: Path) -> str:
    """What `ddx why` puts first, given a job's log with what was seen of the host beside it."""
    argv = [DDX, "why", *map(str, files), "--json"]
    answer = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60).stdout
    return str(json.loads(answer)["causes"][0]["id"])


@contextmanager
def process(program: str, *before: str, wrap: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    """A Python program that has begun, after a shell has done what stands `before`; ended in any case."""
    shell = "; ".join([*before, 'exec "$0" -c "$1"'])
    argv = [*wrap, "bash", "-ec", shell, sys.executable, program]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "ready\n"
            yield running
        finally:
            running.kill()


@contextmanager
def cgroup(controller: str, **files: str) -> Iterator[Path]:
    """A cgroup of version 1, or of version 2 where the controller is there; removed in the end."""
    unified = (CGROUPS / "cgroup.controllers").exists()
    root = CGROUPS if unified else CGROUPS / controller
    if not root.is_dir() or (unified and controller not in (CGROUPS / "cgroup.subtree_control").read_text().split()):
        pytest.skip(f"needs the cgroup controller {controller}")
    place = root / f"ddx-test-{uuid.uuid4().hex[:12]}"
    place.mkdir()
    try:
        for name, value in files.items():
            file = name.removeprefix("v2_" if unified else "v1_")
            if file != name:
                (place / file.replace("__", ".")).write_text(value)
        yield place
    finally:
        place.rmdir()


# --- /dev/shm

_LOOK = f"{DDX} host $$ --interval-s 0 --json || true\n"
"""As the shell itself sees the machine, whatever else runs on it. It exits with 1 where it found something."""

_BUS_ERROR = (
    "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n"
    "RuntimeError: DataLoader worker (pid 11727) is killed by signal: Bus error. It is possible that dataloader's "
    "workers are out of shared memory. Please try to raise your shared memory limit.\n"
    "RuntimeError: DataLoader worker (pid(s) 11727, 11728) exited unexpectedly\n"
)
"""What torch 2.13 printed when /dev/shm ran full under a worker, without the frames between."""

_SHM = "mount -t tmpfs -o size={size} tmpfs /dev/shm\n"
_FULL = "dd if=/dev/zero of=/dev/shm/left-over bs=1M count=64 status=none || true\n"


def test_a_full_shared_memory_is_named(tmp_path: Path) -> None:
    host_text = tmp_path / "host.txt"
    script = _SHM.format(size="32m") + _FULL + f"df -h /dev/shm > {host_text}\n" + _LOOK
    found = findings(in_namespaces(["--mount"], script))["limits.shm_full"]
    assert found["attributes"]["full"] is True
    assert found["attributes"]["size_bytes"] == 32 << 20
    why = subprocess.run(
        [DDX, "why", str(host_text), "--json"], capture_output=True, text=True, check=False, timeout=60
    )
    assert json.loads(why.stdout)["causes"][0]["id"] == "shm-too-small"


def test_an_ample_shared_memory_raises_nothing() -> None:
    script = _SHM.format(size="1g") + _LOOK
    assert "limits.shm_full" not in findings(in_namespaces(["--mount"], script))


@pytest.mark.long
def test_the_shared_memory_of_a_container_is_seen_from_outside() -> None:
    inside = "mount --make-rprivate /; " + _SHM.format(size="16m").strip()
    with process(_WAITING, inside, wrap=("unshare", "--mount")) as running:
        found = looked(str(running.pid), "--interval-s", "0")["limits.shm_full"]
    assert (found["attributes"]["size_bytes"], found["attributes"]["small"]) == (16 << 20, True)


# --- memory and CPU of a cgroup


@pytest.mark.long
def test_a_kill_for_memory_is_named_for_its_own_container_only(tmp_path: Path) -> None:
    with (
        cgroup("memory", v1_memory__limit_in_bytes=str(96 << 20), v2_memory__max=str(96 << 20)) as tight,
        cgroup("memory") as roomy,
        process(_WAITING, f"echo $$ > {tight}/cgroup.procs") as survivor,
        process(_WAITING, f"echo $$ > {roomy}/cgroup.procs") as neighbour,
    ):
        shell = f'echo $$ > {tight}/cgroup.procs; exec "$0" -c "$1"'
        with subprocess.Popen(["bash", "-c", shell, sys.executable, _GREEDY]) as killed:
            assert killed.wait(timeout=60) == -9
        sick, well = looked(str(survivor.pid), "--interval-s", "0"), looked(str(neighbour.pid), "--interval-s", "0")
        logged = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
    assert "host.oom_kill" in sick
    assert sick["host.oom_kill"]["attributes"].get("pid", killed.pid) == killed.pid
    assert "host.oom_kill" not in well
    kernel_log = tmp_path / "dmesg.txt"
    kernel_log.write_text("".join(line for line in logged.splitlines(True) if f"{killed.pid}" in line))
    assert leading_cause(LOGS / "torchrun_sigkill.log", kernel_log) == "host-oom-killed"


@pytest.mark.long
def test_a_quota_that_holds_back_is_named() -> None:
    with (
        cgroup("cpu", v1_cpu__cfs_quota_us="10000", v2_cpu__max="10000 100000") as tight,
        process(_BUSY, f"echo $$ > {tight}/cgroup.procs") as busy,
    ):
        found = looked(str(busy.pid))["limits.cpu_throttled"]
    assert found["attributes"]["cpus"] == pytest.approx(0.1)
    assert found["attributes"]["how"] == "between_readings"


@pytest.mark.long
def test_a_quota_that_is_not_used_up_raises_nothing() -> None:
    with (
        cgroup("cpu", v1_cpu__cfs_quota_us="800000", v2_cpu__max="800000 100000") as ample,
        process(_BUSY, f"echo $$ > {ample}/cgroup.procs") as busy,
    ):
        assert "limits.cpu_throttled" not in looked(str(busy.pid))


# --- the name of the host

_NAMED = """ip link set lo up
ip link add eth0 type veth peer name eth1
ip address add 10.9.8.7/24 dev eth0
ip link set eth0 up
ip link set eth1 up
hostname trainer
echo "{address} trainer" > {hosts}
mount --bind {hosts} /etc/hosts
"""


@pytest.mark.long
@pytest.mark.needs("ip", "getent")
def test_a_host_name_that_means_loopback_is_named(tmp_path: Path) -> None:
    script = _NAMED.format(address="127.0.1.1", hosts=tmp_path / "hosts") + _LOOK
    found = findings(in_namespaces(["--mount", "--uts", "--net"], script))
    name = found["network.hostname_loopback"]
    assert (name["attributes"]["name"], name["attributes"]["addresses"]) == ("trainer", ["127.0.1.1"])


@pytest.mark.long
@pytest.mark.needs("ip", "getent")
def test_a_host_name_that_means_an_interface_raises_nothing(tmp_path: Path) -> None:
    script = _NAMED.format(address="10.9.8.7", hosts=tmp_path / "hosts") + _LOOK
    found = json.loads(in_namespaces(["--mount", "--uts", "--net"], script))["findings"]
    assert "network.hostname_loopback" not in {one["code"] for one in found}
    chosen = {
        one["attributes"]["library"]: one["attributes"]["interface"]
        for one in found
        if one["code"] == "network.interface_chosen"
    }
    assert chosen["gloo"] == "eth0"
