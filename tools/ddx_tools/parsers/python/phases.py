"""In which phase of training a stack is, by the rules of `knowledge/phases.yaml`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from ddx_tools.parsers.python.pyspy_json import Frame
from ddx_tools.yaml_data import shipped

_Rule = tuple[str, re.Pattern[str], re.Pattern[str]]


def phase_of(frames: Sequence[Frame]) -> str | None:
    """The phase that the library frames of a stack tell, innermost first; None if they tell none."""
    inside = [frame for frame in frames if not frame.is_user]
    for rules in (_rules("beside_step"), _rules("step")):
        for frame in inside:
            for phase, module, function in rules:
                if module.fullmatch(frame.module) and function.fullmatch(frame.bare_function):
                    return phase
    return None


def beside_step(phase: str | None) -> bool:
    """Whether it is made beside the steps of training."""
    return any(phase == known for known, _, _ in _rules("beside_step"))


def in_step(phase: str | None) -> bool:
    """Whether it is part of a training step."""
    return any(phase == known for known, _, _ in _rules("step"))


def phase_words(phase: str) -> str:
    """A phase as a person says it."""
    words: dict[str, str] = shipped("phases.yaml")["words"]
    return words[phase]


@cache
def _rules(part: str) -> tuple[_Rule, ...]:
    return tuple(
        (rule["phase"], re.compile(rule["module"]), re.compile(rule.get("function", ".*")))
        for rule in shipped("phases.yaml")[part]
    )
