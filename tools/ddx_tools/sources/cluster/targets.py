"""Selects the hosts of a job and the way to reach them: node sets, hostfiles, a Slurm job, pods."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddx_tools.model.errors import UsageError
from ddx_tools.model.grouping import gathered
from ddx_tools.sources.asked_host import AskedHost

MOST_HOSTS = 100_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}")
_ASK_S = 20.0
_NO_INPUT = "--input=none"
"""Keeps the many concurrent srun processes from reading this terminal's input."""
_MPI_HOSTFILE = Path("/etc/mpi/hostfile")
"""The hostfile of the MPIJob operator (kubeflow/mpi-operator, v2)."""
_EXAMPLE = "For example: node[001-128], a,b,c, @group, or a file with one host per line."


@dataclass(frozen=True)
class Reach:
    """Hosts, and how to start a program there."""

    hosts: tuple[str, ...]
    via: str = ""
    """The prefix of a command, with %host in it; "" means ssh as ClusterShell starts it."""
    job: str = ""
    """Selects one of several jobs by a variable of its ranks: SLURM_JOB_ID=4242."""
    ddx: str = ""
    """The ddx program on those hosts; "" means the same path as here."""
    total_s: float = 60.0
    """After this many seconds, the answers so far are judged."""
    gateways: Any = None
    """A ClusterShell TopologyTree of gateways for ssh; without one, all hosts are reached from here."""

    def typed_to(self, host: str, connect_s: int) -> list[str]:
        """Return the command prefix that runs a program on a host and passes our input to its stdin.

        `connect_s` limits the connection time of ssh; other ways of access ignore it.
        """
        if not self.via:
            return ["ssh", "-a", "-x", "-oBatchMode=yes", f"-oConnectTimeout={connect_s}", host]
        words = [word.replace("%host", host) for word in shlex.split(self.via) if word != _NO_INPUT]
        if words[:2] == ["kubectl", "exec"]:
            words.insert(2, "--stdin")
        return words


def node_names(text: str) -> list[str]:
    """The hosts of a node set, or of a file with one host per line, without duplicates. Raises UsageError."""
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    path = Path(text)
    if path.is_file():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        # As in MPI hostfiles: `node1 slots=8` or `node1:8`.
        text = ",".join(line.split()[0].split(":")[0] for line in lines if line.strip()[:1] not in ("", "#"))
    if expanded_size(text) > MOST_HOSTS:
        raise UsageError(f"{text[:100]}: more than {MOST_HOSTS:,} hosts", _EXAMPLE)
    try:
        names = [str(name) for name in NodeSet(text)]
    except NodeSetException as error:
        raise UsageError(f"{text[:100]}: not a list of hosts ({error})", _EXAMPLE) from error
    return _checked(names, text)


def expanded_size(text: str) -> int:
    """The number of hosts to which the ranges of a node set expand, without expanding them: 4 for `node[1-3,7]`."""
    if re.search(r"\[[^]]*\d{19}", text):
        return sys.maxsize
    folded = [re.findall(r"\[(.*?)]", part) for part in re.findall(r"(?:[^,[]|\[[^]]*])+", text)]
    ranges = [[re.findall(r"(\d+)(?:-(\d+))?", one) for one in each] for each in folded]
    return sum(math.prod(sum(abs(int(b or a) - int(a)) + 1 for a, b in one) for one in each) for each in ranges)


def folded(names: Iterable[str]) -> str:
    """Fold host names into a node set such as `node[1-3,7]`."""
    from ClusterShell.NodeSet import NodeSet

    return str(NodeSet.fromlist(list(names)))


def reasons(asked: Sequence[AskedHost]) -> list[str]:
    """Why hosts did not answer, one line per reason: `node[3,7]: Connection refused. No sshd …`"""
    by_reason = gathered(((one.reason, one.remedy), one.target) for one in asked if one.state != "answered")
    return [f"{folded(hosts)}: {reason}. {remedy}".strip() for (reason, remedy), hosts in by_reason.items()]


def reach_of(
    *,
    hosts: str = "",
    slurm: str = "",
    k8s: str = "",
    via: str = "",
    gateways: str = "",
    total_s: float = 60.0,
    environment: Mapping[str, str] = os.environ,
) -> Reach | None:
    """The hosts selected by the options; None if none are set. `hosts` may be `auto`: from the environment.

    Raises UsageError.
    """
    if sum(map(bool, (hosts, slurm, k8s))) > 1:
        raise UsageError("several options select hosts", "Use only one of --hosts, --slurm and --k8s.")
    if via and "%host" not in via:
        raise UsageError(f"--via {via[:100]}: no place for the host's name", "For example: 'ssh -p 2222 %host'")
    if hosts == "auto":
        hosts, slurm = _of_environment(environment)
    if slurm:
        found = _slurm(slurm)
    elif k8s:
        found = _pods(k8s)
    elif hosts:
        found = Reach(tuple(node_names(hosts)))
    else:
        return None
    if gateways and (via or found.via):
        raise UsageError("gateways work only with ssh", "Omit --gateways, or name the hosts: --hosts.")
    ddx, tree = environment.get("DDX_ON_HOSTS") or found.ddx, _tree(gateways) if gateways else None
    return replace(found, via=via or found.via, ddx=ddx, gateways=tree, total_s=total_s)


def _tree(file: str) -> Any:
    """The tree below this host in a ClusterShell topology.conf. Raises UsageError."""
    from ClusterShell.NodeSet import NodeSetException
    from ClusterShell.Topology import TopologyError, TopologyParser

    here = socket.gethostname().partition(".")[0]
    try:
        if "[routes]" not in Path(file).read_text(encoding="utf-8"):
            raise TopologyError("no [routes]")
        return TopologyParser(file).tree(here)
    except (TopologyError, NodeSetException, OSError, ValueError) as error:
        example = (
            f"Expected a ClusterShell topology.conf: [routes], then {here}: gate[1-2], then gate[1-2]: node[001-128]."
        )
        raise UsageError(f"--gateways {file[:100]}: {error}", example) from error


def _of_environment(environment: Mapping[str, str]) -> tuple[str, str]:
    """The node set or hostfile, or else the Slurm job, that the environment names. Raises UsageError."""
    if job := environment.get("SLURM_JOB_ID"):
        return "", job
    named = [environment[name] for name in ("OMPI_MCA_orte_default_hostfile", "HYDRA_HOST_FILE") if name in environment]
    for file in (*map(Path, named), _MPI_HOSTFILE):
        if file.is_file():
            return str(file), ""
    raise UsageError("no variable here names the hosts of a job", f"Name them: --hosts. {_EXAMPLE}")


def _slurm(job: str) -> Reach:
    if not re.fullmatch(r"[0-9_+]{1,40}", job):
        raise UsageError(f"--slurm {job[:60]}: not a job number", "`squeue --me` lists yours.")
    said = _ask(["squeue", "--noheader", "--jobs", job, "--format", "%N"]).split()
    if not said:
        raise UsageError(f"job {job} has no nodes", "It may be pending or finished: squeue --me; sacct -j JOB.")
    step = f"srun --jobid={job} --overlap --nodes=1 --ntasks=1 {_NO_INPUT} --quiet --nodelist=%host"
    return Reach(tuple(node_names(",".join(said))), step, f"SLURM_JOB_ID={job}")


def _pods(asked: str) -> Reach:
    """The pods of `SELECTOR [-n NAMESPACE] [-c CONTAINER]`, as kubectl takes them."""
    selector, *options = shlex.split(asked)
    pairs = dict(zip(options[::2], options[1::2], strict=False))
    if len(options) % 2 or not pairs.keys() <= {"-n", "-c"} or selector.startswith("-"):
        raise UsageError(f"--k8s {asked[:100]!r}", "For example: 'app=train -n research -c pytorch'")
    space = ["-n", pairs["-n"]] if "-n" in pairs else []
    pods = json.loads(_ask(["kubectl", "get", "pods", "--selector", selector, "--output", "json", *space])).get("items")
    names = [str(pod["metadata"]["name"]) for pod in pods or []]
    inside = ["-c", pairs["-c"]] if "-c" in pairs else []
    via = shlex.join(["kubectl", "exec", *space, *inside, "%host", "--"])
    return Reach(tuple(_checked(names, asked)), via, ddx="ddx")


def _ask(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_ASK_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{shlex.join(argv)}: {error}", "Name the hosts themselves: --hosts.") from error
    if done.returncode:
        raise UsageError(f"{shlex.join(argv)}: {done.stderr.strip()[:300]}", "Name the hosts themselves: --hosts.")
    return done.stdout


def _checked(names: Sequence[str], asked: str) -> list[str]:
    """Check host names, which become words of a command line: none may look like an option or contain a command."""
    if not 1 <= len(names) <= MOST_HOSTS:
        raise UsageError(f"{asked[:100]}: {len(names)} hosts", f"Name 1 to {MOST_HOSTS:,}. {_EXAMPLE}")
    if odd := next((name for name in names if not _NAME.fullmatch(name)), None):
        raise UsageError(f"{odd[:100]!r} is not a host name", _EXAMPLE)
    return list(names)
