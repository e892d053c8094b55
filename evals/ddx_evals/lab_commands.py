"""`ddx lab`: real training jobs on the CPU that go wrong in known ways, to examine or to record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddx_server.render.output import console, error_console, progress_line
from ddx_tools.model.errors import UsageError

if TYPE_CHECKING:
    from ddx_evals.incidents import Incident
    from ddx_evals.lab import Scenario

app = typer.Typer(no_args_is_help=True, help="Real training jobs on the CPU that go wrong in known ways.")

SCENARIO = Annotated[str, typer.Argument(help="A scenario from `ddx lab list`.")]
NPROC = Annotated[int, typer.Option(help="Number of ranks; the scenario's file lists the supported numbers.")]


@app.command("list")
def list_scenarios() -> None:
    """List all scenarios."""
    from ddx_evals.lab.scenario import read_scenarios

    scenarios, errors = read_scenarios()
    for scenario in scenarios.values():
        console().print(f"{scenario.id:28} {scenario.job:9} {scenario.title}", markup=False)
    for error in errors.values():
        error_console().print(f"left out: {error.message}", markup=False, soft_wrap=True)


@app.command()
def run(
    scenario: SCENARIO,
    nproc: NPROC = 4,
    seconds: Annotated[float | None, typer.Option(help="Seconds to keep it. Default: until Ctrl-C.")] = None,
) -> None:
    """Run a scenario and keep it alive after the fault, to examine with `ddx why PID`."""
    import signal
    import time

    from ddx_evals.lab import LabError, LabRun

    try:
        with LabRun(_scenario(scenario, nproc), nproc) as lab_run:
            lab_run.start()
            console().print(f"launcher {lab_run.launcher_pid} in {lab_run.workdir}")
            lab_run.wait_struck()
            console().print(f"ranks {lab_run.rank_pids()}\n{lab_run.truth()}", markup=False)
            signal.pause() if seconds is None else time.sleep(seconds)
    except LabError as error:
        raise UsageError(str(error), "Try again; the job's working directory was removed.") from error


@app.command()
def record(
    scenario: SCENARIO,
    out: Annotated[Path | None, typer.Option(help="The split to write to. Default: `dev`.", show_default=False)] = None,
    nproc: NPROC = 4,
    incident_id: Annotated[
        str | None, typer.Option("--id", help="Id in hex digits. Default: a new one.", show_default=False)
    ] = None,
) -> None:
    """Record a scenario as an incident: a bundle of all raw material, and the truth beside it."""
    import secrets

    from ddx_evals.lab import LabError
    from ddx_evals.recorder import record as record_incident
    from ddx_tools.knowledge.resources import incidents_dir

    chosen = _scenario(scenario, nproc)
    split = out or incidents_dir() / "dev"
    try:
        with progress_line(quiet=False) as progress:
            incident = record_incident(chosen, nproc, split, incident_id or secrets.token_hex(3), progress)
    except LabError as error:
        raise UsageError(str(error), "Try again: the machine may have been too slow.") from error
    _tell_kept(incident)


@app.command()
def simulate(
    name: Annotated[str, typer.Argument(help="A name from the files in evals/lab/large.")],
    out: Annotated[
        Path | None, typer.Option(help="The split to write to. Default: its own.", show_default=False)
    ] = None,
) -> None:
    """Make an incident with hundreds of ranks: simulated flight records, and logs in real wording."""
    from ddx_evals.large import declarations, simulate_incident
    from ddx_tools.knowledge.resources import incidents_dir

    known = declarations()
    if name not in known:
        raise UsageError(f"there is no large incident {name!r}", f"Known: {', '.join(known)}.")
    with progress_line(quiet=False) as progress:
        incident = simulate_incident(known[name], out or incidents_dir() / known[name].split, progress)
    _tell_kept(incident)


def _tell_kept(incident: Incident) -> None:
    size_kib = incident.material.stat().st_size >> 10
    told = f"{incident.directory}: {size_kib} KiB, views {', '.join(incident.views)}"
    console().print(told, markup=False, soft_wrap=True)


def _scenario(name: str, nproc: int) -> Scenario:
    from ddx_evals.lab.scenario import read_scenarios

    scenarios, errors = read_scenarios()
    if name in errors:
        raise errors[name]
    if name not in scenarios:
        raise UsageError(f"there is no scenario {name!r}", "List them: ddx lab list")
    if scenarios[name].ranks and nproc not in scenarios[name].ranks:
        raise UsageError(f"{name} is defined for {sorted(scenarios[name].ranks)} ranks, not {nproc}")
    return scenarios[name]
