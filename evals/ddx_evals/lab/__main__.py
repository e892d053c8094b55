"""`python -m ddx_evals.lab`: list the scenarios, run one and keep it alive to examine, or judge many."""

import contextlib
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from ddx_evals.lab.classes import scenarios_by_class, usual_ranks
from ddx_evals.lab.outcome import TABLE_HEAD, ask, start_run, ways
from ddx_evals.lab.run import LabError, LabRun
from ddx_evals.lab.scenario import ScenarioError, load_scenarios
from ddx_evals.lab.unattended import LIMIT_S, hangs_or_crashes, run_unattended, run_undisturbed
from ddx_evals.lab.unattended import TABLE_HEAD as UNATTENDED_HEAD

_SHOWN_CHARACTERS = 1000

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.command("list")
def list_scenarios() -> None:
    """List all scenarios."""
    for scenario in load_scenarios().values():
        print(f"{scenario.row:>4}  {scenario.id:32} {scenario.job:9} {scenario.title}")


@app.command()
def run(
    scenario_id: Annotated[str, typer.Argument(metavar="ID", help="a scenario from `list`")],
    nproc: Annotated[int, typer.Option(help="number of ranks")] = 4,
    seconds: Annotated[float | None, typer.Option(help="how long to keep it; default: until Ctrl-C")] = None,
    step: Annotated[int | None, typer.Option(help="the step at which the fault occurs")] = None,
) -> None:
    """Run a scenario and keep it alive after the fault."""
    scenarios = load_scenarios()
    if scenario_id not in scenarios:
        raise typer.BadParameter(f"no scenario {scenario_id!r}; `python -m ddx_evals.lab list` shows them")
    with LabRun(scenarios[scenario_id], nproc, step=step) as lab_run:
        started = time.monotonic()
        lab_run.start()
        print(f"launcher {lab_run.launcher_pid} in {lab_run.workdir}, log {lab_run.launcher_log}", flush=True)
        lab_run.wait_struck()
        print(f"struck after {time.monotonic() - started:.1f} s at step {lab_run.last_step()}")
        print(f"ranks {lab_run.rank_pids()}")
        print(lab_run.truth(), flush=True)
        try:
            signal.pause() if seconds is None else time.sleep(seconds)
        except KeyboardInterrupt:
            print("ending the run")


@app.command()
def hang(name: Annotated[str, typer.Argument(metavar="[CLASS]", help="default: list the classes")] = "") -> None:
    """Start a job with one kind of fault, show what to type next, and keep it until Ctrl-C."""
    classes = scenarios_by_class()
    if name not in classes:
        if name:
            raise typer.BadParameter(f"no class {name!r}; `make hang` lists them")
        for each, scenario in classes.items():
            print(f"make hang CLASS={each:16} {scenario.title}")
        return
    scenario = classes[name]
    with LabRun(scenario, usual_ranks(scenario)) as lab_run:
        lab_run.start()
        print(f"{scenario.title}\nstarting {lab_run.nproc} ranks in {lab_run.workdir} …", flush=True)
        lab_run.wait_struck(timeout_s=240)
        print(lab_run.launcher_log.read_text(encoding="utf-8", errors="replace")[-_SHOWN_CHARACTERS:])
        print(f"\nnow type, in another terminal:\n\n{_what_to_type(lab_run)}\n\nCtrl-C ends the job.", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


def _what_to_type(lab_run: LabRun) -> str:
    ddx = Path(sys.executable).with_name("ddx")
    lines = []
    for host, pid in lab_run.launcher_pids.items():
        inside = f"nsenter --target {pid} --mount --uts --net " if host else ""
        living = host not in lab_run.ended_hosts
        target = pid if living else " ".join(map(str, lab_run.launcher_logs))
        lines.append(f"    {inside if living else ''}{ddx} why {target}")
    return "\n".join(dict.fromkeys(lines))


@app.command()
def table(
    scenario_ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]…", help="default: all")] = None,
    nproc: Annotated[list[int] | None, typer.Option(help="default: 4, or the scenario's smallest number")] = None,
    times: Annotated[int, typer.Option(help="runs of each")] = 1,
    every_way: Annotated[bool, typer.Option(help="also from flight records if stacks suffice")] = False,
) -> None:
    """Run `ddx why` on real runs and print its answers in a table with times."""
    scenarios = load_scenarios()
    print(TABLE_HEAD, flush=True)
    for _ in range(times):
        for scenario in scenarios.values():
            if scenario_ids and scenario.id not in scenario_ids:
                continue
            for ranks in nproc or [usual_ranks(scenario)]:
                for way in ways(scenario) if every_way else ways(scenario)[:1]:
                    with start_run(scenario, ranks, way) as lab_run:
                        lab_run.start()
                        lab_run.wait_struck(timeout_s=240)
                        print(ask(lab_run, way).row(), flush=True)


@app.command()
def unattended(
    scenario_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]…", help="default: all hangs and crashes")
    ] = None,
    nproc: Annotated[
        int | None, typer.Option(help="number of ranks; default: 4, or the scenario's smallest number")
    ] = None,
    limit: Annotated[int, typer.Option(help="timeout of collectives, in seconds")] = LIMIT_S,
    show: Annotated[bool, typer.Option(help="also print the output of the job and ddx")] = False,
) -> None:
    """Run scenarios under `ddx run` with a short timeout, and print what was in their output before it expired."""
    chosen = [s for s in load_scenarios().values() if (s.id in scenario_ids if scenario_ids else hangs_or_crashes(s))]
    right = 0
    print(UNATTENDED_HEAD, flush=True)
    for scenario in chosen:
        try:
            ran = run_unattended(scenario, nproc or usual_ranks(scenario), limit)
        except LabError as error:
            print(f"| {scenario.id} | | {error} |", flush=True)
            continue
        right += not ran.wrong
        print(ran.row(), flush=True)
        if show:
            print(ran.printed, flush=True)
    print(f"\n{right} of {len(chosen)} right")


@app.command()
def undisturbed(
    scenario_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]…", help="default: all healthy scenarios")
    ] = None,
    minutes: Annotated[float, typer.Option(help="total time")] = 60.0,
    nproc: Annotated[
        int | None, typer.Option(help="number of ranks; default: 4, or the scenario's smallest number")
    ] = None,
    limit: Annotated[int, typer.Option(help="timeout of collectives, in seconds")] = LIMIT_S,
) -> None:
    """Run healthy scenarios under `ddx run` in turn, and print each line that ddx added to their output."""
    healthy = [s for s in load_scenarios().values() if "healthy" in s.truth.verdicts]
    chosen = [s for s in healthy if not scenario_ids or s.id in scenario_ids]
    said = 0
    for scenario in chosen:
        ranks = nproc or usual_ranks(scenario)
        lines = run_undisturbed(scenario, ranks, minutes * 60 / len(chosen), limit)
        said += bool(lines)
        print("\n".join([f"{scenario.id}: {len(lines)} lines", *lines]), flush=True)
    print(f"of {len(chosen)} healthy jobs in {minutes:g} minutes, ddx printed something about {said}")


if __name__ == "__main__":
    try:
        app()
    except (LabError, ScenarioError) as error:
        raise SystemExit(f"error: {error}") from error
