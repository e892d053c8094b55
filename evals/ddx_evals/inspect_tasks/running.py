"""Runs a model on the incidents with Inspect, in one or more arms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddx_evals.agents.arm import Arm
from ddx_evals.incidents import Incident, View
from ddx_evals.results.run import CaseResult
from ddx_tools.model.errors import UsageError
from ddx_tools.model.install_hint import install_command


@dataclass(frozen=True)
class ModelRun:
    """Options of a run."""

    model: str
    incidents: Sequence[Incident]
    views: Sequence[View]
    arms: Sequence[Arm]
    epochs: int
    logs: Path
    """Directory for Inspect's logs; `inspect view --log-dir` shows them."""


def run_model(wanted: ModelRun, *, quiet: bool) -> list[CaseResult]:
    """Run a model arm by arm; return the results. Raises UsageError without Inspect, or if the model is unusable."""
    try:
        from inspect_ai import eval as evaluate
        from inspect_ai.model import get_model
    except ImportError as error:
        raise UsageError("running models needs Inspect", install_command("evals")) from error
    from ddx_evals.inspect_tasks.logs import results_of
    from ddx_evals.inspect_tasks.task import incidents

    try:
        model = get_model(wanted.model)
    except Exception as error:  # any error of a provider that lacks a package, a key or the model
        raise UsageError(
            f"Inspect cannot use {wanted.model}: {error}", "Name it as in `inspect eval --model`."
        ) from error
    tasks = [
        incidents(
            [str(incident.directory) for incident in wanted.incidents],
            [str(view) for view in wanted.views],
            str(arm),
            epochs=wanted.epochs,
        )
        for arm in wanted.arms
    ]
    logs = evaluate(
        tasks,
        model=model,
        log_dir=str(wanted.logs),
        display="none" if quiet else "plain",
        fail_on_error=False,
        max_tasks=1,
    )
    if broken := next((log for log in logs if not log.samples), None):
        raise UsageError(f"Inspect ran nothing: {broken.error.message if broken.error else broken.status}")
    return [result for log in logs for result in results_of(log)]
