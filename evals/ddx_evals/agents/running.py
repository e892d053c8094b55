"""Runs a command-line agent over incidents and scores every try."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from ddx_evals.agents.answer_files import check_free_of_others, new_try
from ddx_evals.agents.answer_scores import score_try
from ddx_evals.agents.command import CommandAgent, attempt
from ddx_evals.baselines import Case
from ddx_evals.incidents import Incident, View, staged
from ddx_evals.results.run import CaseResult
from ddx_evals.results.suite import failed
from ddx_tools.model.errors import DdxError, UsageError

Progress = Callable[[str], None]


def run_agent(
    agent: CommandAgent,
    incidents: Sequence[Incident],
    views: Collection[View],
    answers: Path,
    *,
    epochs: int = 1,
    progress: Progress = lambda _: None,
) -> list[CaseResult]:
    """Run the agent on every view of every incident, `epochs` times; submissions stay in `answers`.

    A failed try does not affect the others. Raises UsageError if the agent cannot be run properly, or if `answers` has
    tries of another system.
    """
    agent.check([incident.directory for incident in incidents])
    check_free_of_others(answers, agent.system)
    asked = [
        (incident, view, epoch)
        for incident in incidents
        for view in incident.views
        if view in views
        for epoch in range(1, epochs + 1)
    ]
    if not asked:
        raise UsageError("none of these incidents has such a view", f"Views: {', '.join(View)}")
    results = []
    for number, (incident, view, epoch) in enumerate(asked, 1):
        progress(f"{number}/{len(asked)} {incident.split}/{incident.id} {view}")
        with staged(incident, view) as material:
            results.append(_tried(agent, Case(incident, view, material), new_try(answers, incident, view), epoch))
    return results


def _tried(agent: CommandAgent, case: Case, reports: Path, epoch: int) -> CaseResult:
    try:
        attempt(agent, case, reports)
        return score_try(case, agent.system, reports, epoch)
    except (DdxError, OSError) as error:
        how = {"arm": str(agent.arm), "unsealed": not agent.sealed}
        return failed(case, agent.system, f"{type(error).__name__}: {error}"[:500], epoch).model_copy(update=how)
