"""Scores answers that came from outside, as files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ddx_evals.answer_files import Try, answer_of, read_diagnosis, record_of
from ddx_evals.baselines import Answer, Case
from ddx_evals.incidents import Incident, View, named_incidents, staged
from ddx_evals.results import CaseResult
from ddx_evals.suite import failed, scored
from ddx_tools.errors import UnreadableInput


def score_one(file: Path, incident: Incident, view: View, system: str) -> CaseResult:
    """The score of one diagnosis. Raises UnreadableInput if the file holds none."""
    answer = Answer(read_diagnosis(file))
    with staged(incident, view) as material:
        return scored(Case(incident, view, material), system, answer).model_copy(update={"unsealed": True})


def score_tries(tries: Iterable[Try], system: str) -> list[CaseResult]:
    """The scores of all tries; one that brought no diagnosis is a failed one."""
    results = []
    for each in tries:
        (incident,) = named_incidents([f"{each.split}/{each.incident}"])
        with staged(incident, each.view) as material:
            results.append(score_try(Case(incident, each.view, material), system, each.directory, each.number))
    return results


def score_try(case: Case, system: str, directory: Path, number: int) -> CaseResult:
    """The score of one try. Unless we ran the agent under seal, nobody knows what it saw."""
    record = record_of(directory)
    try:
        result = scored(case, system, answer_of(directory), number)
    except UnreadableInput as error:
        result = failed(case, system, error.message + (f" ({record.ended})" if record else ""), number)
    how = {"arm": record.arm, "unsealed": not record.sealed} if record else {"unsealed": True}
    return result.model_copy(update=how)
