"""`ddx run` and `ddx watch`: a job while it runs, with nobody beside it or somebody who looks on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ddx_server.host_options import GATEWAYS_OPTION, HOSTS_OPTION, K8S_OPTION, SLURM_OPTION, VIA_OPTION, reach
from ddx_server.render.output import console
from ddx_server.report_command import REPORT_OPTION, refuse_page

LAUNCH_COMMAND = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
"""What follows on our own options is the launcher's."""


def run(
    command: Annotated[list[str], typer.Argument(help="The launch command: torchrun --nproc-per-node 8 train.py …")],
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where logs and records go. Default: ddx-runs/<time>-<pid>.")
    ] = None,
    stall_after: Annotated[
        float,
        typer.Option(
            help="Look (never kill) after this many seconds without a step or a collective, at the latest; 0: never. "
            "Where a limit of the job is shorter, or its own pace quicker, the look is earlier."
        ),
    ] = 300.0,
    rank_logs: Annotated[bool, typer.Option(help="Let torchrun keep a log per rank.")] = True,
    notify: Annotated[
        str | None,
        typer.Option(help="A command that gets each answer as JSON on standard input: 'curl -sd @- https://…'."),
    ] = None,
    notify_file: Annotated[Path | None, typer.Option(help="A file that gets each answer as a line of JSON.")] = None,
    page: REPORT_OPTION = None,
    look_on: Annotated[
        str | None, typer.Option(help="USR1 or USR2: look when this signal comes, and do not pass it on.")
    ] = None,
    grace: Annotated[
        float, typer.Option(help="Seconds between the scheduler's SIGTERM and its SIGKILL; a last look may take half.")
    ] = 30.0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing into the job's output.")] = False,
    consistency: Annotated[
        str,
        typer.Option(
            help="Steps of the optimizer (0-3,100, or /500 for each 500th) before which ranks write down what they "
            "hold, for `ddx consistency`.",
            metavar="STEPS",
        ),
    ] = "",
) -> None:
    """Start a job so that its next hang explains itself: `ddx run -- torchrun --nproc-per-node 8 train.py`.

    Sets the variables that make a hang diagnosable (without overriding yours), keeps logs and flight records in one
    directory, prints the diagnosis into the job's output when it stands still or fails, and passes signals and the
    exit code through. docs/unattended.md has recipes for Slurm and Kubernetes.
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
        typer.Argument(help="Of the launcher or any rank. Default: the job on this host.", show_default=False),
    ] = None,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between looks.")] = 2.0,
    hosts: HOSTS_OPTION = "",
    slurm: SLURM_OPTION = "",
    k8s: K8S_OPTION = "",
    via: VIA_OPTION = "",
    gateways: GATEWAYS_OPTION = "",
    rows: Annotated[bool, typer.Option("--rows", hidden=True)] = False,
    job: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Show what each rank of a live job does: moves, waits in which collective, is elsewhere, is gone.

    A grid on a terminal; elsewhere a line whenever something has changed. Who waits is known of jobs that were
    started by `ddx run`. With --hosts, --slurm or --k8s the ranks of all hosts stand in one grid.
    """
    from ddx_server.watch import tell_rows, watch_command

    if rows:
        tell_rows(job, interval, sys.stdout.buffer)
    else:
        watch_command(pid or [], interval, console(), reach=reach(hosts, slurm, k8s, via, gateways, deadline=60.0))
