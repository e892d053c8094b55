"""Creates simulated hosts: namespaces, mounts and cgroups in which programs see another host."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE

from ddx_evals.lab.place import LabHost
from ddx_evals.lab.wires import Wire, wired

PORT = 29500
"""The port on which rank 0's host listens."""

PROGRAMS = ("ip", "tc", "iptables", "unshare", "nsenter", "prlimit", "mount")

_CGROUPS = Path("/sys/fs/cgroup")
_SUBNET = "10.20.30."
_FIRST_HOST = 11
_CFS_PERIOD_US = 100_000
_READY = "ready"
_STAYS = f"echo {_READY}; exec cat"


class Machine:
    """A simulated host that can run programs."""

    def __init__(
        self, place: LabHost, address: str, namespace: str, inside_pid: int, cgroups: Mapping[str, Path]
    ) -> None:
        self.name = place.name
        self.place = place
        self.address = address
        self.namespace = namespace
        self._inside_pid = inside_pid
        self._cgroups = cgroups
        self.other_pids: list[int] = []
        """The pids of programs there that do not belong to the job."""

    def enter(self, argv: Sequence[str], *, cwd: Path, as_job: bool = True) -> list[str]:
        """The command line that runs `argv` on this host, by exec.

        `as_job`: under the container's quota and limits; otherwise only its memory is counted, as for a program that a
        user starts there to investigate.
        """
        joined = [path for kind, path in self._cgroups.items() if as_job or kind == "memory"]
        steps = [f"echo $$ > {shlex.quote(str(path))}/cgroup.procs" for path in joined]
        limits = [f"--{name}={value}" for name, value in self.place.limits.items()] if as_job else []
        if limits:
            argv = ["prlimit", *limits, *argv]
        entering = ["nsenter", f"--target={self._inside_pid}", "--mount", "--uts", "--net", f"--wd={cwd}"]
        # Outside programs are in these namespaces as well, but the cgroup's file names are different there.
        outside = ["bash", "-ec", "; ".join([*steps, 'exec "$@"']), "bash"]
        return [*outside, *entering, *argv]


def missing_for(places: Sequence[LabHost]) -> str | None:
    """Why these hosts cannot be created here; None if they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a job's hosts are Linux namespaces, which need root"
    absent = [program for program in PROGRAMS if not shutil.which(program)]
    if absent:
        return f"a job's hosts need {', '.join(absent)}, which are not on PATH"
    if any(place.memory_mib or place.cpus for place in places) and not (_CGROUPS / "memory").is_dir():
        return "memory and CPU limits need cgroups version 1, which this machine does not have"
    return None


@contextmanager
def machines(places: Sequence[LabHost], workdir: Path) -> Iterator[list[Machine]]:
    """Create the hosts of a job during the block; they share `workdir`, except for disks mounted there.

    Raises subprocess.CalledProcessError if the kernel refuses.
    """
    addresses = {place.name: f"{_SUBNET}{number}" for number, place in enumerate(places, _FIRST_HOST)}
    wires = [Wire(place.name, addresses[place.name], place.mtu, place.port_mtu, place.rate) for place in places]
    with ExitStack() as stack:
        namespaces = stack.enter_context(wired(wires))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="etc-")))
        opened = []
        for place in places:
            own = scratch / place.name
            (own / "cgroup").mkdir(parents=True)
            (own / "hosts").write_text(_hosts_file({**addresses, **place.names}), encoding="utf-8")
            cgroups = stack.enter_context(_cgroups(place))
            inside = stack.enter_context(_inside(place, namespaces[place.name], own, cgroups, workdir))
            machine = Machine(place, addresses[place.name], namespaces[place.name], inside, cgroups)
            if place.listens is not None:
                server = [sys.executable, "-u", "-m", "http.server", str(place.listens)]
                listener = machine.enter(server, cwd=own, as_job=False)
                machine.other_pids.append(stack.enter_context(_running(listener, "Serving HTTP")))
            opened.append(machine)
        yield opened


def _hosts_file(addresses: Mapping[str, str]) -> str:
    return "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in addresses.items())


@contextmanager
def _inside(place: LabHost, namespace: str, own: Path, cgroups: Mapping[str, Path], workdir: Path) -> Iterator[int]:
    """Yield the pid of a process that holds the host's namespaces, which end with it.

    `own` has the host's files: `hosts`, and the empty directory `cgroup`.
    """
    steps = [
        # /sys shows the network devices of the namespace in which it was mounted; the cgroups below it must stay.
        f"mount --rbind /sys/fs/cgroup {own}/cgroup",
        f"mount -t sysfs sysfs /sys && mount --rbind {own}/cgroup /sys/fs/cgroup",
        f"hostname {place.name}",
        f"mount --bind {own}/hosts /etc/hosts",
        # As in a container with cgroup v1: its own limits replace the machine's.
        *(f"mount --bind {shlex.quote(str(path))} {path.parent}" for path in cgroups.values()),
        *([f"mount -t tmpfs -o size={place.shm_mib}m tmpfs /dev/shm"] if place.shm_mib else []),
        *(
            f"mkdir -p {shlex.quote(directory)} && mount -t tmpfs -o size={size_mib}m tmpfs {shlex.quote(directory)}"
            for directory, size_mib in ((str(workdir / name), size) for name, size in place.disks_mib.items())
        ),
        *(f"iptables -A INPUT {rule}" for rule in place.firewall),
        _STAYS,
    ]
    entering = ["nsenter", f"--net=/run/netns/{namespace}", "unshare", "--mount", "--uts", "--propagation=private"]
    with _running([*entering, "bash", "-ec", "\n".join(steps)]) as pid:
        yield pid


@contextmanager
def _running(argv: Sequence[str], ready: str = _READY) -> Iterator[int]:
    """Start a program, wait for the line that says it is ready, and yield its pid; kill it at the end."""
    # Nothing visible later reveals who started it.
    environment = {"PATH": os.environ["PATH"]}
    with subprocess.Popen(argv, cwd="/", env=environment, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert running.stderr is not None
            if not running.stdout.readline().startswith(ready):
                raise subprocess.CalledProcessError(running.wait(), list(argv), stderr=running.stderr.read())
            yield running.pid
        finally:
            running.kill()


@contextmanager
def _cgroups(place: LabHost) -> Iterator[dict[str, Path]]:
    """Create the cgroups (version 1) with a host's limits; yield them by controller."""
    values: dict[str, dict[str, str]] = {}
    if place.memory_mib:
        values["memory"] = {"memory.limit_in_bytes": str(place.memory_mib << 20)}
    if place.cpus:
        quota_us = round(place.cpus * _CFS_PERIOD_US)
        values["cpu"] = {"cpu.cfs_period_us": str(_CFS_PERIOD_US), "cpu.cfs_quota_us": str(quota_us)}
    made: dict[str, Path] = {}
    try:
        for controller, files in values.items():
            path = _CGROUPS / controller / f"container-{uuid.uuid4().hex[:12]}"
            path.mkdir()
            made[controller] = path
            for name, value in files.items():
                (path / name).write_text(value)
        yield made
    finally:
        for path in made.values():
            path.rmdir()
