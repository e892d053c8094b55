"""The options that select hosts, the same for every command, and `ddx node`, which runs on each selected host."""

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
        help="Diagnose all these hosts at once: node\\[001-128], a,b,c, @group, a hostfile (also MPI's), or auto: from "
        "Slurm's or MPI's variables.",
    ),
]
SLURM_OPTION = Annotated[
    str,
    typer.Option(
        "--slurm", rich_help_panel=_PANEL, show_default=False, help="The hosts of this Slurm job, reached by srun."
    ),
]
K8S_OPTION = Annotated[
    str,
    typer.Option(
        "--k8s",
        rich_help_panel=_PANEL,
        show_default=False,
        help="The pods of this selector, reached by kubectl exec: 'app=train -n NAMESPACE -c CONTAINER'.",
    ),
]
VIA_OPTION = Annotated[
    str,
    typer.Option(
        "--via",
        rich_help_panel=_PANEL,
        show_default=False,
        help="The command that reaches a host: 'ssh -p 2222 %host'.",
    ),
]
GATEWAYS_OPTION = Annotated[
    str,
    typer.Option(
        "--gateways",
        metavar="FILE",
        rich_help_panel=_PANEL,
        show_default=False,
        help="Reach the hosts by ssh through gateways, as this ClusterShell topology.conf says.",
    ),
]
DEADLINE_OPTION = Annotated[
    float,
    typer.Option(
        "--deadline",
        rich_help_panel=_PANEL,
        min=1,
        help="Answer after this many seconds, even if some hosts have not answered.",
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
"""For each parameter name: its option and its default."""


def reach(hosts: str, slurm: str, k8s: str, via: str, gateways: str, deadline: float) -> Reach | None:
    """The hosts selected by the options, and how to reach them; None if none is selected. Raises UsageError."""
    if not (hosts or slurm or k8s):
        return None
    from ddx_tools.sources.cluster.targets import reach_of

    return reach_of(hosts=hosts, slurm=slurm, k8s=k8s, via=via, gateways=gateways, total_s=deadline)


def node(
    plan: Annotated[
        str, typer.Option(help="What to capture, as `ddx why --hosts` writes it. Default: everything.")
    ] = "",
    at: Annotated[float | None, typer.Option(help="When to capture, in seconds since the epoch. Default: now.")] = None,
    job: Annotated[
        str, typer.Option(help="Which job, by an environment variable of its ranks: SLURM_JOB_ID=4242.")
    ] = "",
    most_bytes: Annotated[int, typer.Option(min=1, help="Maximum size of the packed answer.")] = 8 << 20,
    raw: Annotated[bool, typer.Option("--raw", help="Send the raw material as well as the rows.")] = False,
) -> None:
    """Capture the job on this host and write the result to standard output; `ddx why --hosts` runs this everywhere."""
    from ddx_tools.investigation.many_hosts.node import answer
    from ddx_tools.sources.hosts.local import LocalHost

    answer(sys.stdout.buffer, LocalHost(), plan=plan, at=at, job=job, most_bytes=most_bytes, raw=raw)
