"""Builds and checks the truth of an incident before its job runs, so that a mistake does not cost a recording."""

from __future__ import annotations

import contextlib
import datetime as dt
import platform
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ddx_evals.incidents import CANARY, Provenance, Truth, View
from ddx_evals.incidents.incident import Incident, IncidentError
from ddx_evals.incidents.leaks import leaks
from ddx_evals.incidents.validation import problems_of_truth, texts_below
from ddx_evals.lab.scenario import Scenario, scenario_file
from ddx_evals.lab.truth import resolve_truth
from ddx_evals.lab.workspace import prepare
from ddx_evals.recorder.questions import question, question_file
from ddx_evals.recorder.told import truth_of
from ddx_tools.diagnosis.playbook import load_playbooks

_VERSIONS_OF = {"torch": "torch", "ddx": "debug-distributed"}
"""Distributions whose versions a truth lists, in addition to those that its job uses."""
_SEEN_IN_PROCESSES = {"args", "launcher_args", "environment", "hosts"}


def truth_beforehand(scenario: Scenario, nproc: int, out: Path, incident_id: str) -> Truth:
    """The truth of the incident `out`/`incident_id`, without layout and partial view, which the recording adds.

    Raises IncidentError with all problems of the incident, ScenarioError if scenario and job do not match, UsageError
    if the scenario has no question.
    """
    asked = question(scenario.id)
    with tempfile.TemporaryDirectory(prefix="run-") as scratch:
        workdir = Path(scratch)
        prepare(scenario, nproc, scenario.step, workdir)
        told = truth_of(resolve_truth(scenario, nproc, scenario.step, workdir), asked)
        page = load_playbooks().causes.get(told.cause)
        told = told.model_copy(
            update={
                "id": incident_id,
                "category": page.category if page else "",
                "views": {**told.views, **({View.LOG_ONLY: asked.log_only} if asked.log_only else {})},
                "provenance": _provenance(scenario, nproc, out, incident_id),
                "canary": CANARY,
            }
        )
        wrong = [*problems_of_truth(Incident(out / incident_id, told)), *leaks(_shown_by_job(scenario, workdir))]
    if wrong:
        listed = "\n".join(wrong)
        raise IncidentError(
            f"{scenario.id} was not recorded, since the incident would not be usable:\n{listed}",
            f"Fix {scenario_file(scenario.id)}, {question_file(scenario.id)} or the --id.",
        )
    return told


def _shown_by_job(scenario: Scenario, workdir: Path) -> Iterator[tuple[str, str]]:
    yield from texts_below(workdir)
    yield "the command line", scenario.model_dump_json(include=_SEEN_IN_PROCESSES)


def _provenance(scenario: Scenario, nproc: int, out: Path, incident_id: str) -> Provenance:
    return Provenance(
        kind="recorded",
        scenario=scenario.id,
        command=f"ddx lab record {scenario.id} --nproc {nproc} --id {incident_id} --out {_shown(out)}",
        versions=_versions(scenario),
        date=dt.datetime.now(dt.UTC).date(),
    )


def _shown(out: Path) -> str:
    """The directory relative to the top of the checkout, if it is inside."""
    checkout = Path(__file__).resolve().parents[3]
    resolved = out.resolve()
    return str(resolved.relative_to(checkout)) if resolved.is_relative_to(checkout) else "DIRECTORY"


def _versions(scenario: Scenario) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name, distribution in [*_VERSIONS_OF.items(), *((module, module) for module in scenario.needs_modules)]:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(distribution)
    return found
