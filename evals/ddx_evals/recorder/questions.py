"""What a scenario needs to become an incident beside its own truth: a user's words, key facts, the deciding check."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from ddx_evals.incidents.truth import Fact, Pattern, Record, RightAnswer
from ddx_tools.knowledge.load import YAMLError, load_yaml
from ddx_tools.knowledge.resources import lab_dir
from ddx_tools.knowledge.validation import first_mistake
from ddx_tools.model.errors import UsageError

DIRECTORY = "questions"
_EXAMPLE = "fewer-batches"
_HOW = "docs/evals.md, Adding an incident, says what it holds."


class Question(Record):
    """One scenario's file in `evals/lab/questions`. What the truth has too means what it means there."""

    prompt: str
    deciding_fact: str
    deciding_words: Pattern
    evidence: tuple[Fact, ...] = ()
    innocent: tuple[str, ...] = ()
    log_only: RightAnswer | None = None
    """What is right where only the log is seen; None: the incident has no such view."""
    minimal_probes: tuple[str, ...] = ()
    fix_class: str = ""


def question_file(scenario_id: str) -> Path:
    """Where the question of a scenario stands."""
    return lab_dir() / DIRECTORY / f"{scenario_id}.yaml"


def question(scenario_id: str) -> Question:
    """The question of a scenario. Raises UsageError if there is none, or it lacks something."""
    file = question_file(scenario_id)
    try:
        return Question.model_validate(load_yaml(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise UsageError(
            f"nobody wrote how {scenario_id!r} becomes an incident",
            f"Write {file}, such as {_EXAMPLE}.yaml beside it. {_HOW}",
        ) from None
    except ValidationError as error:
        raise UsageError(f"{file}: {first_mistake(error)}", _HOW) from error
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise UsageError(f"{file}: {error}", _HOW) from error


def asked_scenarios() -> list[str]:
    """The ids of all scenarios that have a question."""
    return sorted(file.stem for file in (lab_dir() / DIRECTORY).glob("*.yaml"))
