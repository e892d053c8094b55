"""Determines the training phase of a stack by the rules in `knowledge/phases.yaml`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from ddx_tools.knowledge.load import shipped
from ddx_tools.model.stack_frame import Frame
from ddx_tools.model.user_frames import module_path

_Rule = tuple[str, re.Pattern[str], re.Pattern[str]]


def phase_of(frames: Sequence[Frame]) -> str | None:
    """The training phase shown by a stack's library frames (innermost first); None if they show none.

    A phase within a wider one counts as the wider one: metrics of a validation are logged during validation.
    """
    inside = [frame for frame in frames if not frame.is_user]
    for part in ("beside_step", "step"):
        if phases := [phase for frame in inside if (phase := _phase(part, frame.module, frame.bare_function))]:
            wider: str | None = shipped("phases.yaml")["wider"].get(phases[0])
            return wider if wider in phases else phases[0]
    return None


def phase_of_exception(frames: Sequence[str]) -> str | None:
    """The phase of an exception: init, load, forward, backward, optimizer or collective; None if unknown.

    `frames`: "file:line function", outermost first, as in `log_events.frames`. The innermost frame that shows a phase
    decides, unless it is part of a wider one: recomputing activations is a forward inside backward, and moving a
    module is part of loading it.
    """
    phases = []
    for frame in reversed(frames):
        place, _, function = frame.partition(" ")
        if phase := _phase("raised", module_path(place.rpartition(":")[0]), function):
            phases.append(phase)
    wider = {"forward": "backward", "init": "load"}.get(phases[0]) if phases else None
    return wider if wider in phases else next(iter(phases), None)


def _phase(part: str, module: str, function: str) -> str | None:
    known = (phase for phase, file, name in _rules(part) if file.fullmatch(module) and name.fullmatch(function))
    return next(known, None)


def beside_step(phase: str | None) -> bool:
    """Whether a phase is outside the training steps."""
    return any(phase == known for known, _, _ in _rules("beside_step"))


def in_step(phase: str | None) -> bool:
    """Whether a phase is part of a training step."""
    return any(phase == known for known, _, _ in _rules("step"))


def phase_words(phase: str) -> str:
    """A phase in words, for a person."""
    words: dict[str, str] = shipped("phases.yaml")["words"]
    return words[phase]


@cache
def _rules(part: str) -> tuple[_Rule, ...]:
    return tuple(
        (rule["phase"], re.compile(rule["module"]), re.compile(rule.get("function", ".*")))
        for rule in shipped("phases.yaml")[part]
    )
