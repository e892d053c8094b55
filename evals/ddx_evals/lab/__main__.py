"""`python -m ddx_evals.lab`: list the scenarios, or run one and keep it alive to look at."""

import signal
import time
from typing import Annotated

import typer

from ddx_evals.lab.run import LabError, LabRun
from ddx_evals.lab.scenario import ScenarioError, load_scenarios

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.command("list")
def list_scenarios() -> None:
    """Show every scenario."""
    for scenario in load_scenarios().values():
        print(f"{scenario.row:>4}  {scenario.id:32} {scenario.job:9} {scenario.title}")


@app.command()
def run(
    scenario_id: Annotated[str, typer.Argument(metavar="ID", help="as shown by `list`")],
    nproc: Annotated[int, typer.Option(help="number of ranks")] = 4,
    seconds: Annotated[float | None, typer.Option(help="how long to keep it; until Ctrl-C without")] = None,
    step: Annotated[int | None, typer.Option(help="the step at which it strikes")] = None,
) -> None:
    """Run a scenario and keep it alive after it has struck."""
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


if __name__ == "__main__":
    try:
        app()
    except (LabError, ScenarioError) as error:
        raise SystemExit(f"error: {error}") from error
