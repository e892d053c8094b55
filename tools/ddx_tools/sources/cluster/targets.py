"""Which hosts are meant, and what reaches them: node sets, hostfiles, a Slurm job, pods."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
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
"""To srun: many of them at a time shall not read what is typed here."""
_MPI_HOSTFILE = Path("/etc/mpi/hostfile")
"""Where the operator of MPIJobs puts it (kubeflow/mpi-operator, v2)."""
_EXAMPLE = "For example: node[001-128], a,b,c, @group, or a file with a host a line."


@dataclass(frozen=True)
class Reach:
    """Hosts, and how a program is started there."""

    hosts: tuple[str, ...]
    via: str = ""
    """What stands in front of a command, with %host in it; without one, ssh as ClusterShell starts it."""
    job: str = ""
    """Which job is meant where several run: a variable of its ranks and its value, as in SLURM_JOB_ID=4242."""
    ddx: str = ""
    """The program on those hosts; without one, what this is here."""
    total_s: float = 60.0
    """After so many seconds what has come is judged."""
    gateways: Any = None
    """A TopologyTree of ClusterShell, by which ssh reaches them; without one, all are asked from here."""

    def typed_to(self, host: str, connect_s: int) -> list[str]:
        """What stands in front of a command on a host that is to read what is written here."""
        if not self.via:
            return ["ssh", "-a", "-x", "-oBatchMode=yes", f"-oConnectTimeout={connect_s}", host]
        words = [word.replace("%host", host) for word in shlex.split(self.via) if word != _NO_INPUT]
        if words[:2] == ["kubectl", "exec"]:
            words.insert(2, "--stdin")
        return words


def node_names(text: str) -> list[str]:
    """The hosts of a node set, or of a file with a host a line, each once. Raises UsageError."""
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    path = Path(text)
    if path.is_file():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        # As in hostfiles of MPI: `node1 slots=8` or `node1:8`.
        text = ",".join(line.split()[0].split(":")[0] for line in lines if line.strip()[:1] not in ("", "#"))
    try:
        names = [str(name) for name in NodeSet(text)]
    except NodeSetException as error:
        raise UsageError(f"{text[:100]}: not a list of hosts ({error})", _EXAMPLE) from error
    return _checked(names, text)


def folded(names: Iterable[str]) -> str:
    """`node[1-3,7]`."""
    from ClusterShell.NodeSet import NodeSet

    return str(NodeSet.fromlist(list(names)))


def reasons(asked: Sequence[AskedHost]) -> list[str]:
    """Why hosts did not answer, those with the same reason in one line: `node[3,7]: Connection refused. No sshd …`"""
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
    """What somebody named; None if nobody named anything. `hosts` may be `auto`: those that the environment names.

    Raises UsageError.
    """
    if sum(map(bool, (hosts, slurm, k8s))) > 1:
        raise UsageError("hosts are named in several ways", "Give one of --hosts, --slurm and --k8s.")
    if via and "%host" not in via:
        raise UsageError(
            f"--via {via[:100]}: nothing says where the host's name goes", "For example: 'ssh -p 2222 %host'"
        )
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
        raise UsageError("gateways are used with ssh only", "Leave out --gateways, or name the hosts: --hosts.")
    ddx, tree = environment.get("DDX_ON_HOSTS") or found.ddx, _tree(gateways) if gateways else None
    return replace(found, via=via or found.via, ddx=ddx, gateways=tree, total_s=total_s)


def _tree(file: str) -> Any:
    """What a topology.conf of ClusterShell says of the hosts below this one."""
    from ClusterShell.NodeSet import NodeSetException
    from ClusterShell.Topology import TopologyError, TopologyParser

    here = socket.gethostname().partition(".")[0]
    try:
        if "[routes]" not in Path(file).read_text(encoding="utf-8"):
            raise TopologyError("no [routes]")
        return TopologyParser(file).tree(here)
    except (TopologyError, NodeSetException, OSError, ValueError) as error:
        example = (
            f"It is a topology.conf of ClusterShell: [routes], then {here}: gate[1-2], then gate[1-2]: node[001-128]."
        )
        raise UsageError(f"--gateways {file[:100]}: {error}", example) from error


def _of_environment(environment: Mapping[str, str]) -> tuple[str, str]:
    """A node set or hostfile, or else a job of Slurm."""
    if job := environment.get("SLURM_JOB_ID"):
        return "", job
    named = [environment[name] for name in ("OMPI_MCA_orte_default_hostfile", "HYDRA_HOST_FILE") if name in environment]
    for file in (*map(Path, named), _MPI_HOSTFILE):
        if file.is_file():
            return str(file), ""
    raise UsageError("nothing here says which hosts a job has", f"Name them: --hosts. {_EXAMPLE}")


def _slurm(job: str) -> Reach:
    if not re.fullmatch(r"[0-9_+]{1,40}", job):
        raise UsageError(f"--slurm {job[:60]}: not the number of a job", "`squeue --me` lists yours.")
    said = _ask(["squeue", "--noheader", "--jobs", job, "--format", "%N"]).split()
    if not said:
        raise UsageError(f"job {job} holds no node", "It may wait still, or be over: squeue --me; sacct -j JOB.")
    step = f"srun --jobid={job} --overlap --nodes=1 --ntasks=1 {_NO_INPUT} --quiet --nodelist=%host"
    return Reach(tuple(node_names(",".join(said))), step, f"SLURM_JOB_ID={job}")


def _pods(asked: str) -> Reach:
    """`SELECTOR [-n NAMESPACE] [-c CONTAINER]`, as kubectl has them."""
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
    """A name becomes a word of a command line: one that could be an option or hold another command is refused."""
    if not 1 <= len(names) <= MOST_HOSTS:
        raise UsageError(f"{asked[:100]}: {len(names)} hosts", f"Name 1 to {MOST_HOSTS:,}. {_EXAMPLE}")
    if odd := next((name for name in names if not _NAME.fullmatch(name)), None):
        raise UsageError(f"{odd[:100]!r} is no name of a host", _EXAMPLE)
    return list(names)
