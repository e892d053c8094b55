"""What a scenario needs, besides its truth, to become an incident: the user's words, key facts, the deciding check."""

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
_HOW = "docs/evals.md, Adding an incident, describes its format."


class Question(Record):
    """One scenario's file in `evals/lab/questions`. Fields that the truth also has mean the same."""

    prompt: str
    deciding_fact: str
    deciding_words: Pattern
    evidence: tuple[Fact, ...] = ()
    innocent: tuple[str, ...] = ()
    log_only: RightAnswer | None = None
    """The right answer if only the log is seen; None: the incident has no such view."""
    minimal_probes: tuple[str, ...] = ()
    fix_class: str = ""


def question_file(scenario_id: str) -> Path:
    """The path of a scenario's question file."""
    return lab_dir() / DIRECTORY / f"{scenario_id}.yaml"


def question(scenario_id: str) -> Question:
    """Load the question of a scenario. Raises UsageError if there is none, or it is invalid."""
    file = question_file(scenario_id)
    try:
        return Question.model_validate(load_yaml(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise UsageError(
            f"the scenario {scenario_id!r} has no question, so it cannot become an incident",
            f"Write {file}, like {_EXAMPLE}.yaml beside it. {_HOW}",
        ) from None
    except ValidationError as error:
        raise UsageError(f"{file}: {first_mistake(error)}", _HOW) from error
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise UsageError(f"{file}: {error}", _HOW) from error


def asked_scenarios() -> list[str]:
    """The ids of all scenarios that have a question."""
    return sorted(file.stem for file in (lab_dir() / DIRECTORY).glob("*.yaml"))
