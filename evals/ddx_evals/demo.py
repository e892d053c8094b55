"""`ddx demo`: starts a real training job that hangs, and shows what ddx says about it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddx_server.render.output import EXIT_OURS, console
from ddx_tools.model.errors import UsageError
from ddx_tools.model.install_hint import install_command

if TYPE_CHECKING:
    from rich.console import Console

    from ddx_evals.lab import LabRun

_FOLLOW_S = 0.2


def demo(
    scenario: Annotated[str, typer.Argument(help="A lab scenario; `list` shows them.")] = "fewer-batches",
    nproc: Annotated[int, typer.Option(help="Number of ranks: 4 or 8.")] = 4,
) -> None:
    """Start a real Gloo training job on the CPU, let it go wrong, and diagnose it."""
    from ddx_evals.lab import LabError, LabRun, load_scenarios

    scenarios = load_scenarios()
    if scenario == "list":
        for one in scenarios.values():
            console().print(f"{one.id:28} {one.title}", markup=False)
        return
    if scenario not in scenarios:
        raise UsageError(f"there is no scenario {scenario!r}", "List them: ddx demo list")
    if find_spec("torch") is None:
        raise UsageError("the demo trains a real model and needs torch", install_command("lab"))
    chosen = scenarios[scenario]
    if nproc not in chosen.ranks and chosen.ranks:
        raise UsageError(f"{scenario} is defined for {sorted(chosen.ranks)} ranks, not {nproc}", "")
    try:
        with LabRun(chosen, nproc) as run:
            _show(run, console())
    except LabError as error:
        console().print(f"the lab job did not get that far: {error}", markup=False)
        raise typer.Exit(EXIT_OURS) from error


def _show(run: LabRun, out: Console) -> None:
    from ddx_server.render.diagnosis import render_diagnosis
    from ddx_tools.investigation.run import investigate

    out.print(f"Starting {run.nproc} ranks of a real training job (Gloo, CPU): {run.scenario.job}", style="bold")
    run.start()
    with _steps_shown(run.launcher_log, out), out.status("training …"):
        run.wait_struck(timeout_s=240)
    ended = run.scenario.settles.how == "exited"
    target = str(run.workdir) if ended else str(run.launcher_pid)
    out.print(f"\n{'The job ended.' if ended else 'No more steps.'} Asking: ddx why {target}\n", style="bold")
    with out.status("examining all ranks …"):
        found = investigate([target])
        diagnosis = found.diagnose()
    render_diagnosis(diagnosis, out)
    out.print(f"The fault that the lab injected: {run.scenario.title}.", style="dim", markup=False)


@contextmanager
def _steps_shown(log: Path, out: Console) -> Iterator[None]:
    """Print the steps of a growing log during the block."""
    done = threading.Event()
    follower = threading.Thread(target=_follow, args=(log, out, done), daemon=True)
    follower.start()
    try:
        yield
    finally:
        done.set()
        follower.join()


def _follow(log: Path, out: Console, done: threading.Event) -> None:
    with log.open(encoding="utf-8", errors="replace") as stream:
        while not done.wait(_FOLLOW_S):
            for line in stream:
                if "loss" in line:
                    out.print(f"  {line.strip()}", markup=False, style="dim")
