"""Converts an Inspect log to our results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

from ddx_evals.incidents import View, load_incident
from ddx_evals.results.run import CaseResult, Run, RunManifest
from ddx_tools.model.errors import UnreadableInput, UsageError
from ddx_tools.model.install_hint import install_command

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog, EvalSample

SUFFIX = ".eval"
_OUTCOME, _RESULT = "outcome", "result"


def read_log(file: Path) -> Run:
    """Read a log as a run. Raises UnreadableInput if it is not a log of our task, UsageError without Inspect."""
    try:
        from inspect_ai.log import read_eval_log
    except ImportError as error:
        raise UsageError(f"{file} is an Inspect log", install_command("evals")) from error
    try:
        log = read_eval_log(str(file))
        return Run(manifest=RunManifest(created=log.eval.created), results=results_of(log))
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise UnreadableInput(f"{file} has no results of ddx_evals/incidents: {error}") from error


def results_of(log: EvalLog) -> list[CaseResult]:
    """One result per sample and epoch; a failed or unscored sample is a failed try."""
    metadata = log.eval.metadata or {}
    agent = metadata.get("agent", "react")
    system = log.eval.model if agent == "react" else f"{agent} {log.eval.model}"
    return [_result(sample, system, metadata.get("arm", "")) for sample in log.samples or []]


def _result(sample: EvalSample, system: str, arm: str) -> CaseResult:
    score = (sample.scores or {}).get(_OUTCOME)
    how = {"system": system, "arm": arm, "epoch": sample.epoch}
    if score and score.metadata and not sample.error:
        result = CaseResult.model_validate(score.metadata[_RESULT]).model_copy(update=how)
        tokens = sum(usage.total_tokens for usage in sample.model_usage.values())
        if result.efficiency is None:
            return result
        took = result.efficiency.model_copy(update={"tokens": tokens, "seconds": sample.total_time})
        return result.model_copy(update={"efficiency": took})
    incident = load_incident(Path(sample.metadata["where"]))
    return CaseResult(
        split=incident.split,
        incident=incident.id,
        view=View(sample.metadata["view"]),
        truth=incident.truth.cause,
        error=sample.error.message if sample.error else "it was not scored",
        **how,
    )
