"""Scores answers of external agents, given as files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ddx_evals.agents.answer_files import OUTPUT, Try, answer_of, read_diagnosis, record_of
from ddx_evals.baselines import Answer, Case
from ddx_evals.incidents import Incident, View, named_incidents, staged
from ddx_evals.results.run import CaseResult
from ddx_evals.results.suite import failed, scored
from ddx_server.render.safe_text import safe
from ddx_tools.model.errors import UnreadableInput, UsageError

UNNAMED = "agent"
"""The name of a system without a name."""
_MOST_OF_OUTPUT_BYTES, _LONGEST_LINE = 4096, 200


def score_one(file: Path, incident: Incident, view: View, system: str) -> CaseResult:
    """Score the diagnosis in a file. Raises UnreadableInput if there is none."""
    answer = Answer(read_diagnosis(file))
    with staged(incident, view) as material:
        return scored(Case(incident, view, material), system, answer).model_copy(update={"unsealed": True})


def score_tries(tries: Sequence[Try], system: str | None = None) -> list[CaseResult]:
    """Score all tries; a try without a diagnosis counts as failed.

    The results are named `system`, or else as the records say. Raises UsageError if `system` is given for tries of
    several systems.
    """
    records = [record_of(each.directory) for each in tries]
    recorded = {record.system for record in records if record and record.system}
    if system and len(recorded) > 1:
        raise UsageError(f"these are tries of {', '.join(sorted(recorded))}", "Omit --system.")
    results = []
    for each, record in zip(tries, records, strict=True):
        name = system or (record.system if record else "") or UNNAMED
        (incident,) = named_incidents([f"{each.split}/{each.incident}"])
        with staged(incident, each.view) as material:
            results.append(score_try(Case(incident, each.view, material), name, each.directory, each.number))
    return results


def score_try(case: Case, system: str, directory: Path, number: int) -> CaseResult:
    """Score one try. Unless we ran the agent sealed, nobody knows what it saw."""
    record = record_of(directory)
    try:
        result = scored(case, system, answer_of(directory), number)
    except UnreadableInput as error:
        ended = f" ({record.ended}){_last_words(directory)}" if record else ""
        result = failed(case, system, error.message + ended, number)
    how = {"arm": record.arm, "unsealed": not record.sealed} if record else {"unsealed": True}
    return result.model_copy(update=how)


def _last_words(directory: Path) -> str:
    """The last line of an agent's output, made safe, and the file with the rest."""
    file = directory / OUTPUT
    try:
        with file.open("rb") as output:
            output.seek(max(0, output.seek(0, os.SEEK_END) - _MOST_OF_OUTPUT_BYTES))
            lines = output.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {safe(last, limit=_LONGEST_LINE).plain} – all output: {file}" if last else ", printed nothing"
