"""Scores answers that came from outside, as files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ddx_evals.answer_files import Try, answer_of, read_diagnosis
from ddx_evals.baselines import Answer, Case
from ddx_evals.incidents import Incident, View, named_incidents, staged
from ddx_evals.results import CaseResult
from ddx_evals.suite import failed, scored
from ddx_tools.errors import UnreadableInput


def score_one(file: Path, incident: Incident, view: View, system: str) -> CaseResult:
    """The score of one diagnosis. Raises UnreadableInput if the file holds none."""
    answer = Answer(read_diagnosis(file))
    with staged(incident, view) as material:
        return scored(Case(incident, view, material), system, answer)


def score_tries(tries: Iterable[Try], system: str) -> list[CaseResult]:
    """The scores of all tries; one that brought no diagnosis is a failed one."""
    results = []
    for each in tries:
        (incident,) = named_incidents([f"{each.split}/{each.incident}"])
        with staged(incident, each.view) as material:
            case = Case(incident, each.view, material)
            try:
                results.append(scored(case, system, answer_of(each.directory), each.number))
            except UnreadableInput as error:
                results.append(failed(case, system, error.message, each.number))
    return results
