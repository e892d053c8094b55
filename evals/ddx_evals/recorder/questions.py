"""What a scenario needs to become an incident beside its own truth: a user's words, key facts, the deciding check."""

from __future__ import annotations

from pydantic import ValidationError

from ddx_evals.incidents.truth import Fact, Pattern, Record, RightAnswer
from ddx_tools.errors import UsageError
from ddx_tools.resources import lab_dir
from ddx_tools.yaml_data import YAMLError, load_yaml

DIRECTORY = "questions"


class Question(Record):
    """One scenario's file in `evals/lab/questions`."""

    prompt: str
    deciding_fact: str
    deciding_words: Pattern
    evidence: tuple[Fact, ...] = ()
    innocent: tuple[str, ...] = ()
    log_only: RightAnswer | None = None
    minimal_probes: tuple[str, ...] = ()
    fix_class: str = ""


def question(scenario_id: str) -> Question:
    """The question of a scenario. Raises UsageError if there is none, or it lacks something."""
    file = lab_dir() / DIRECTORY / f"{scenario_id}.yaml"
    try:
        return Question.model_validate(load_yaml(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        known = ", ".join(asked_scenarios())
        raise UsageError(f"nobody wrote how {scenario_id!r} becomes an incident", f"Known: {known}.") from None
    except (OSError, YAMLError, ValidationError) as error:
        raise UsageError(f"{file}: {error}") from error


def asked_scenarios() -> list[str]:
    """The ids of all scenarios that have a question."""
    return sorted(file.stem for file in (lab_dir() / DIRECTORY).glob("*.yaml"))
