"""What a scenario needs to become an incident beside its own truth: a user's words, key facts, the deciding check."""

from __future__ import annotations

from pydantic import ValidationError

from ddx_evals.incidents.truth import Fact, Pattern, Record, RightAnswer
from ddx_tools.errors import UsageError
from ddx_tools.resources import lab_dir
from ddx_tools.yaml_data import YAMLError, load_yaml

FILE = "incidents.yaml"


class Question(Record):
    """One scenario's entry in `evals/lab/incidents.yaml`."""

    prompt: str
    deciding_fact: str
    deciding_words: Pattern
    evidence: tuple[Fact, ...] = ()
    innocent: tuple[str, ...] = ()
    log_only: RightAnswer | None = None
    minimal_probes: tuple[str, ...] = ()
    fix_class: str = ""


def question(scenario_id: str) -> Question:
    """The entry of a scenario. Raises UsageError if there is none, or it lacks something."""
    file = lab_dir() / FILE
    try:
        entries = load_yaml(file.read_text(encoding="utf-8"))
        if scenario_id not in entries:
            raise UsageError(
                f"{FILE} does not say how {scenario_id!r} becomes an incident",
                f"It knows: {', '.join(sorted(entries))}.",
            )
        return Question.model_validate(entries[scenario_id])
    except (OSError, YAMLError, ValidationError) as error:
        raise UsageError(f"{file}: {error}") from error
