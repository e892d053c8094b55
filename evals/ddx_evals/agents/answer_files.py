"""Answers of external agents as files: where a served incident collects them, and how they are read for scoring.

    <answers>/<split>/<incident>/<view>/<try>/diagnosis-<n>.json    a reported diagnosis; the last one counts
    <answers>/<split>/<incident>/<view>/<try>/transcript.json       the calls, if the harness keeps them
    <answers>/<split>/<incident>/<view>/<try>/try.json              how the try was made, if we ran the agent
    <answers>/<split>/<incident>/<view>/<try>/output.txt            the agent's output, if we ran it

A try without a diagnosis is a failed run, not a wrong answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ddx_evals.baselines.case import Answer
from ddx_evals.incidents import Incident, View
from ddx_evals.scoring import TRANSCRIPT, Transcript
from ddx_tools.knowledge.validation import first_mistake
from ddx_tools.model.diagnosis import Diagnosis
from ddx_tools.model.errors import UnreadableInput, UsageError

TRY, OUTPUT = "try.json", "output.txt"
M = TypeVar("M", bound=BaseModel)
_NUMBER = re.compile(r"diagnosis-(\d{1,6})\.json")


class TryRecord(BaseModel):
    """`try.json`: how a try was made. The harness writes it, out of the agent's reach."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str = ""
    """The name of the system; "" in older records."""
    arm: str
    sealed: bool
    """Whether the agent saw only its workplace."""
    ended: str
    """How the agent ended, in words."""
    seconds: float


@dataclass(frozen=True)
class Try:
    """One try on one view of one incident."""

    split: str
    incident: str
    view: View
    number: int
    directory: Path


def new_try(answers: Path, incident: Incident, view: View) -> Path:
    """Create a directory for the reports on a view."""
    return next_try(answers / incident.split / incident.id / view)


def next_try(of_view: Path) -> Path:
    """Create the next try's directory for a view."""
    directory = of_view / str(1 + max(_numbers(of_view), default=0))
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
            f"{answers} has no answers", "They belong at <split>/<incident>/<view>/<try>/diagnosis-1.json below it."
        )
    return found


def answer_of(directory: Path) -> Answer:
    """The last diagnosis of a try. Raises UnreadableInput if there is none, or if it is invalid."""
    reported = reports_in(directory)
    if not reported:
        misnamed = [file.name for file in directory.glob("diagnosis*") if file.is_file()]
        seen = f"; {min(misnamed)[:80]} is ignored: its name must be diagnosis-1.json" if misnamed else ""
        raise UnreadableInput(f"no diagnosis was reported{seen}")
    return Answer(read_diagnosis(reported[-1]), transcript_of(directory))


def reports_in(directory: Path) -> list[Path]:
    """The diagnoses of a try in order of arrival; some may be with the incident that they are about."""
    numbered = [(file, int(match[1])) for file in directory.rglob("*.json") if (match := _NUMBER.fullmatch(file.name))]
    return [file for file, _ in sorted(numbered, key=lambda each: (each[0].stat().st_mtime_ns, each[1]))]


def last_report_ns(directory: Path) -> int:
    """The time of a try's last diagnosis, in nanoseconds since 1970; 0 if there is none."""
    reported = reports_in(directory)
    return reported[-1].stat().st_mtime_ns if reported else 0


def next_report(directory: Path) -> str:
    """The file name for the next diagnosis of a try."""
    numbers = [int(match[1]) for file in reports_in(directory) if (match := _NUMBER.fullmatch(file.name))]
    return f"diagnosis-{1 + max(numbers, default=0)}.json"


def systems_in(answers: Path) -> set[str]:
    """The systems whose tries, made by us, are below a directory."""
    records = [record_of(file.parent) for file in answers.glob(f"*/*/*/*/{TRY}")]
    return {record.system for record in records if record and record.system}


def check_free_of_others(answers: Path, system: str) -> None:
    """Raise UsageError if a directory has tries of another system, which could not be distinguished later."""
    if others := systems_in(answers) - {system}:
        raise UsageError(
            f"{answers} has tries of {', '.join(sorted(others))}",
            f"Keep those of {system} apart: --answers {answers}-{system}",
        )


def record_of(directory: Path) -> TryRecord | None:
    """The record of how a try was made; None if it was not made by us. Raises UnreadableInput if it is damaged."""
    file = directory / TRY
    return _read(file, TryRecord) if file.exists() else None


def transcript_of(directory: Path) -> Transcript:
    """The calls of a try; empty if they were not kept. Raises UnreadableInput for a damaged file."""
    file = directory / TRANSCRIPT
    told = _read(file, Transcript) if file.exists() else Transcript()
    record = record_of(directory)
    return told.model_copy(update={"seconds": record.seconds}) if record and told.seconds is None else told


def _read(file: Path, kind: type[M]) -> M:
    try:
        return kind.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise UnreadableInput(f"{file} is not a {kind.__name__.lower()}: {error.errors()[0]['msg']}") from error


def read_diagnosis(file: Path) -> Diagnosis:
    """Read a diagnosis from a file, as `ddx why --json` prints it. Raises UnreadableInput."""
    try:
        return Diagnosis.model_validate_json(file.read_bytes())
    except OSError as error:
        raise UnreadableInput(f"{file}: {error.strerror or error}") from error
    except ValidationError as error:
        raise UnreadableInput(
            f"{file} is not a diagnosis ({first_mistake(error)})", "`ddx schema` prints its schema."
        ) from error


def _tries_of(of_view: Path, split: str, incident: str, view: View) -> Iterator[Try]:
    yield from (Try(split, incident, view, number, of_view / str(number)) for number in _numbers(of_view))


def _numbers(of_view: Path) -> list[int]:
    return sorted(int(path.name) for path in of_view.glob("*") if path.is_dir() and path.name.isdecimal())
