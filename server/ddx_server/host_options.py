"""The options that say on which hosts to look, the same for every command, and what a host among many runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ddx_tools.sources.cluster.targets import Reach

_PANEL = "Many hosts"

HOSTS_OPTION = Annotated[
    str,
    typer.Option(
        "--hosts",
        "--hostfile",
        rich_help_panel=_PANEL,
        show_default=False,
        help="Diagnose all of them at once: node\\[001-128], a,b,c, @group, a hostfile (also of MPI), or auto: as "
        "Slurm's or MPI's variables say.",
    ),
]
SLURM_OPTION = Annotated[
    str,
    typer.Option(
        "--slurm", rich_help_panel=_PANEL, show_default=False, help="The hosts of this job of Slurm, by srun."
    ),
]
K8S_OPTION = Annotated[
    str,
    typer.Option(
        "--k8s",
        rich_help_panel=_PANEL,
        show_default=False,
        help="The pods of this selector, by kubectl exec: 'app=train -n NAMESPACE -c CONTAINER'.",
    ),
]
VIA_OPTION = Annotated[
    str,
    typer.Option(
        "--via", rich_help_panel=_PANEL, show_default=False, help="What starts a command there: 'ssh -p 2222 %host'."
    ),
]
GATEWAYS_OPTION = Annotated[
    str,
    typer.Option(
        "--gateways",
        metavar="FILE",
        rich_help_panel=_PANEL,
        show_default=False,
        help="Ask them by ssh through gateways, as this topology.conf of ClusterShell says.",
    ),
]
DEADLINE_OPTION = Annotated[
    float,
    typer.Option(
        "--deadline",
        rich_help_panel=_PANEL,
        min=1,
        help="Seconds until the answer, even if some hosts are silent then.",
    ),
]
HOST_OPTIONS = {
    "hosts": (HOSTS_OPTION, ""),
    "slurm": (SLURM_OPTION, ""),
    "k8s": (K8S_OPTION, ""),
    "via": (VIA_OPTION, ""),
    "gateways": (GATEWAYS_OPTION, ""),
    "deadline": (DEADLINE_OPTION, 60.0),
}
"""By name of the parameter: what it is, and its default."""


def reach(hosts: str, slurm: str, k8s: str, via: str, gateways: str, deadline: float) -> Reach | None:
    """The hosts that somebody named. Raises UsageError."""
    if not (hosts or slurm or k8s):
        return None
    from ddx_tools.sources.cluster.targets import reach_of

    return reach_of(hosts=hosts, slurm=slurm, k8s=k8s, via=via, gateways=gateways, total_s=deadline)


def node(
    plan: Annotated[str, typer.Option(help="What to look at, as `ddx why --hosts` writes it. Default: all.")] = "",
    at: Annotated[float | None, typer.Option(help="When, in seconds since the epoch. Default: now.")] = None,
    job: Annotated[str, typer.Option(help="Which job, by a variable of its ranks: SLURM_JOB_ID=4242.")] = "",
    most_bytes: Annotated[int, typer.Option(min=1, help="Of the answer, packed.")] = 8 << 20,
    raw: Annotated[bool, typer.Option("--raw", help="Send the raw material, too, not only the rows.")] = False,
) -> None:
    """Look at the job on this host and write what was seen to standard output: `ddx why --hosts` starts it on each."""
    from ddx_tools.investigation.many_hosts.node import answer
    from ddx_tools.sources.hosts.local import LocalHost

    answer(sys.stdout.buffer, LocalHost(), plan=plan, at=at, job=job, most_bytes=most_bytes, raw=raw)
