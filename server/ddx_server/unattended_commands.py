"""`ddx run` and `ddx watch`: attend to a job while it runs, unattended or for a person who watches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ddx_server.host_options import GATEWAYS_OPTION, HOSTS_OPTION, K8S_OPTION, SLURM_OPTION, VIA_OPTION, reach
from ddx_server.render.output import console
from ddx_server.report_command import REPORT_OPTION, refuse_page

LAUNCH_COMMAND = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
"""Everything after our own options belongs to the launcher."""


def run(
    command: Annotated[list[str], typer.Argument(help="The launch command: torchrun --nproc-per-node 8 train.py …")],
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Directory for logs and records. Default: ddx-runs/<time>-<pid>.")
    ] = None,
    stall_after: Annotated[
        float,
        typer.Option(
            help="Capture (never kill) the job after at most this many seconds without a step or a collective; 0: "
            "never. Earlier if a timeout of the job is shorter or its steps are faster."
        ),
    ] = 300.0,
    rank_logs: Annotated[bool, typer.Option(help="Make torchrun write a log per rank.")] = True,
    notify: Annotated[
        str | None,
        typer.Option(help="A command that receives each answer as JSON on standard input: 'curl -sd @- https://…'."),
    ] = None,
    notify_file: Annotated[
        Path | None, typer.Option(help="A file to which each answer is appended as a line of JSON.")
    ] = None,
    page: REPORT_OPTION = None,
    look_on: Annotated[
        str | None, typer.Option(help="USR1 or USR2: capture on this signal and do not pass it on.")
    ] = None,
    grace: Annotated[
        float, typer.Option(help="Seconds from the scheduler's SIGTERM to its SIGKILL; a last capture may take half.")
    ] = 30.0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing into the job's output.")] = False,
    consistency: Annotated[
        str,
        typer.Option(
            help="Optimizer steps (0-3,100, or /500 for every 500th) before which ranks record fingerprints of their "
            "state, for `ddx consistency`.",
            metavar="STEPS",
        ),
    ] = "",
) -> None:
    """Start a job so that its next hang explains itself: `ddx run -- torchrun --nproc-per-node 8 train.py`.

    Sets the variables that make a hang diagnosable (without overriding yours) and keeps logs and flight records in one
    directory. Prints the diagnosis into the job's output when the job makes no progress or fails. Passes signals and
    the exit code through. Logs of the launcher and the ranks are kept as printed, without redaction, in a directory
    that only you can read. docs/unattended.md has recipes for Slurm and Kubernetes.
    """
    from ddx_server.run import Notifier, RunOptions, look_signal, run_command, steps_of

    refuse_page(page)
    options = RunOptions(
        dir=directory,
        stall_after_s=stall_after or None,
        rank_logs=rank_logs,
        notifier=Notifier.of(notify, notify_file),
        page=page and page.absolute(),
        grace_s=grace,
        look_on=look_signal(look_on),
        quiet=quiet,
        consistency=steps_of(consistency),
    )
    sys.exit(run_command(command, options))


def watch(
    pid: Annotated[
        list[str] | None,
        typer.Argument(help="Pid of the launcher or any rank. Default: the job on this host.", show_default=False),
    ] = None,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between samples.")] = 2.0,
    hosts: HOSTS_OPTION = "",
    slurm: SLURM_OPTION = "",
    k8s: K8S_OPTION = "",
    via: VIA_OPTION = "",
    gateways: GATEWAYS_OPTION = "",
    rows: Annotated[bool, typer.Option("--rows", hidden=True)] = False,
    job: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Show the state of each rank of a live job: it moves, waits in a collective, is outside it, or is gone.

    Draws a grid on a terminal; otherwise prints a line whenever something changes. Only for jobs started by `ddx run`
    is it known who waits. With --hosts, --slurm or --k8s, one grid shows the ranks of all hosts.
    """
    from ddx_server.watch import tell_rows, watch_command

    if rows:
        tell_rows(job, interval, sys.stdout.buffer)
    else:
        watch_command(pid or [], interval, console(), reach=reach(hosts, slurm, k8s, via, gateways, deadline=60.0))
