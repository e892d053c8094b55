"""Hosts with an sshd each: network, process and name spaces of their own on one machine, a switch between them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ddx_evals.lab.wires import Wire, wired

NEEDS = ("linux", "root", "ip", "unshare", "nsenter", "sshd", "ssh", "ssh-keygen")
BIN = Path(sys.executable).parent
_SUBNET = "10.79.0."
_SSHD = """\
HostKey {home}/host_key
AuthorizedKeysFile {home}/key.pub
StrictModes no
UsePAM no
UseDNS no
PidFile none
MaxStartups 100
"""
_SSH = """\
Host *
  IdentityFile {home}/key
  IdentitiesOnly yes
  UserKnownHostsFile /dev/null
  StrictHostKeyChecking no
  LogLevel ERROR
"""


@dataclass(frozen=True)
class Hosts:
    """They, and a machine from which they are asked."""

    home: Path
    spaces: Mapping[str, str]
    """Network namespaces by host; that of the asking machine is called `desk`."""
    inits: Mapping[str, int]
    """By host, the process whose namespaces are the host's."""

    @property
    def via(self) -> str:
        """What reaches a host."""
        return f"ssh -F {self.home}/ssh_config -o BatchMode=yes -o ConnectTimeout=4 %host"

    def address(self, host: str) -> str:
        """Of its interface."""
        return next(line.split()[0] for line in (self.home / "hosts").read_text().splitlines() if host in line.split())

    def inside(self, host: str, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` on a host."""
        return ["nsenter", f"--target={self.inits[host]}", "--mount", "--uts", "--net", "--pid", *argv]

    def at_desk(self, *argv: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a program on the asking machine."""
        return subprocess.run(self.inside("desk", argv), capture_output=True, text=True, check=False, timeout=timeout_s)


def sshd_of(hosts: Hosts, host: str) -> int:
    """The pid of a host's sshd."""
    children = Path(f"/proc/{hosts.inits[host]}/task/{hosts.inits[host]}/children").read_text().split()
    return int(children[0])


@contextmanager
def sshd_hosts(names: Sequence[str], home: Path) -> Iterator[Hosts]:
    """The hosts, each with a shell as its first process and an sshd below it. Needs root and the programs of NEEDS."""
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / name], check=True)
    (home / "sshd_config").write_text(_SSHD.format(home=home))
    (home / "ssh_config").write_text(_SSH.format(home=home))
    Path("/run/sshd").mkdir(exist_ok=True)
    addresses = {name: f"{_SUBNET}{number}" for number, name in enumerate(["desk", *names], 1)}
    (home / "hosts").write_text("".join(f"{a} {n}\n" for n, a in addresses.items()) + "127.0.0.1 localhost\n")
    with ExitStack() as stack:
        spaces = stack.enter_context(wired([Wire(name, address) for name, address in addresses.items()]))
        inits = {name: stack.enter_context(_init(name, spaces[name], home)) for name in addresses}
        yield Hosts(home, spaces, inits)


@contextmanager
def _init(name: str, space: str, home: Path) -> Iterator[int]:
    """The pid, as seen from outside, of the first process of a host; all of the host ends with it."""
    sshd = f"{shutil.which('sshd')} -D -f {home}/sshd_config -E {home}/{name}.log & " if name != "desk" else ""
    ours = f"mount --bind {home}/hosts /etc/hosts; mount --bind {home}/ssh_config /etc/ssh/ssh_config"
    script = f"hostname {name}; {ours}; {sshd}echo ready; read -r _"
    argv = ["nsenter", f"--net=/run/netns/{space}", "unshare", "--mount", "--uts", "--propagation=private"]
    argv += ["--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-ec", script]
    environment = {"PATH": os.environ["PATH"]}
    with subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "ready\n"
            children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
            yield int(children[0])
        finally:
            running.kill()


def wait_for(what: str, reached: object, timeout_s: float = 120.0) -> None:
    """Until a function says so."""
    assert callable(reached)
    deadline = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < deadline, f"no sign of {what} in {timeout_s:.0f} s"
        time.sleep(0.1)
