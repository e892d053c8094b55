"""Scores answers that came from outside, as files."""

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
"""What a system is called that nobody named."""
_MOST_OF_OUTPUT_BYTES, _LONGEST_LINE = 4096, 200


def score_one(file: Path, incident: Incident, view: View, system: str) -> CaseResult:
    """The score of one diagnosis. Raises UnreadableInput if the file holds none."""
    answer = Answer(read_diagnosis(file))
    with staged(incident, view) as material:
        return scored(Case(incident, view, material), system, answer).model_copy(update={"unsealed": True})


def score_tries(tries: Sequence[Try], system: str | None = None) -> list[CaseResult]:
    """The scores of all tries; one that brought no diagnosis is a failed one.

    They are called `system`, else as their records say. Raises UsageError if they are of several, and are to be called
    one.
    """
    records = [record_of(each.directory) for each in tries]
    recorded = {record.system for record in records if record and record.system}
    if system and len(recorded) > 1:
        raise UsageError(f"these are tries of {', '.join(sorted(recorded))}", "Leave --system out.")
    results = []
    for each, record in zip(tries, records, strict=True):
        name = system or (record.system if record else "") or UNNAMED
        (incident,) = named_incidents([f"{each.split}/{each.incident}"])
        with staged(incident, each.view) as material:
            results.append(score_try(Case(incident, each.view, material), name, each.directory, each.number))
    return results


def score_try(case: Case, system: str, directory: Path, number: int) -> CaseResult:
    """The score of one try. Unless we ran the agent under seal, nobody knows what it saw."""
    record = record_of(directory)
    try:
        result = scored(case, system, answer_of(directory), number)
    except UnreadableInput as error:
        ended = f" ({record.ended}){_last_words(directory)}" if record else ""
        result = failed(case, system, error.message + ended, number)
    how = {"arm": record.arm, "unsealed": not record.sealed} if record else {"unsealed": True}
    return result.model_copy(update=how)


def _last_words(directory: Path) -> str:
    """The last line that an agent printed, and where the others are. It is a stranger's text."""
    file = directory / OUTPUT
    try:
        with file.open("rb") as output:
            output.seek(max(0, output.seek(0, os.SEEK_END) - _MOST_OF_OUTPUT_BYTES))
            lines = output.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {safe(last, limit=_LONGEST_LINE).plain} – all that it printed: {file}" if last else ", printed nothing"
