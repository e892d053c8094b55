"""Answers of agents outside, as files: where a served incident collects them, and how they are read to be scored.

    <answers>/<split>/<incident>/<view>/<try>/diagnosis-<n>.json    what was reported; the last one counts
    <answers>/<split>/<incident>/<view>/<try>/transcript.json       the calls, if the harness keeps them

A try without a diagnosis is a failed run, not a wrong answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ddx_evals.baselines.case import Answer
from ddx_evals.incidents import Incident, View
from ddx_evals.scoring import Transcript
from ddx_tools.errors import UnreadableInput, UsageError
from ddx_tools.model import Diagnosis

TRANSCRIPT = "transcript.json"
_NUMBER = re.compile(r"diagnosis-(\d{1,6})\.json")


@dataclass(frozen=True)
class Try:
    """One try at one view of one incident."""

    split: str
    incident: str
    view: View
    number: int
    directory: Path


def new_try(answers: Path, incident: Incident, view: View) -> Path:
    """A new directory that takes what is reported about a view."""
    of_view = answers / incident.split / incident.id / view
    number = 1 + max((each.number for each in _tries_of(of_view, incident.split, incident.id, view)), default=0)
    directory = of_view / str(number)
    directory.mkdir(parents=True)
    return directory


def tries(answers: Path) -> list[Try]:
    """All tries below a directory. Raises UsageError if there is none."""
    found = [
        each
        for of_view in sorted(answers.glob("*/*/*"))
        if of_view.name in set(View)
        for each in _tries_of(of_view, of_view.parent.parent.name, of_view.parent.name, View(of_view.name))
    ]
    if not found:
        raise UsageError(
            f"{answers} holds no answers", "They lie at <split>/<incident>/<view>/<try>/diagnosis-1.json below it."
        )
    return found


def answer_of(directory: Path) -> Answer:
    """The last diagnosis of a try. Raises UnreadableInput if there is none, or it is none."""
    numbered = {int(match[1]): file for file in directory.rglob("*.json") if (match := _NUMBER.fullmatch(file.name))}
    if not numbered:
        raise UnreadableInput("no diagnosis was reported")
    diagnosis = read_diagnosis(numbered[max(numbered)])
    transcript = directory / TRANSCRIPT
    if not transcript.exists():
        return Answer(diagnosis)
    try:
        return Answer(diagnosis, Transcript.model_validate_json(transcript.read_bytes()))
    except ValidationError as error:
        raise UnreadableInput(f"{transcript} is no transcript: {error.errors()[0]['msg']}") from error


def read_diagnosis(file: Path) -> Diagnosis:
    """A diagnosis in a file, as `ddx why --json` prints it. Raises UnreadableInput."""
    try:
        return Diagnosis.model_validate_json(file.read_bytes())
    except OSError as error:
        raise UnreadableInput(f"{file}: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise UnreadableInput(
            f"{file} is no diagnosis ({where}: {first['msg'].lower()})", "`ddx schema` prints what it has to be."
        ) from error


def _tries_of(of_view: Path, split: str, incident: str, view: View) -> Iterator[Try]:
    numbers = sorted(int(path.name) for path in of_view.glob("*") if path.is_dir() and path.name.isdecimal())
    yield from (Try(split, incident, view, number, of_view / str(number)) for number in numbers)
