"""In which phase of training a stack is, by the rules of `knowledge/phases.yaml`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from ddx_tools.knowledge.load import shipped
from ddx_tools.model.stack_frame import Frame
from ddx_tools.model.user_frames import module_path

_Rule = tuple[str, re.Pattern[str], re.Pattern[str]]


def phase_of(frames: Sequence[Frame]) -> str | None:
    """The phase that the library frames of a stack tell, innermost first; None if they tell none.

    What belongs to something wider is told as that: metrics of a validation are logged in it.
    """
    inside = [frame for frame in frames if not frame.is_user]
    for part in ("beside_step", "step"):
        if phases := [phase for frame in inside if (phase := _phase(part, frame.module, frame.bare_function))]:
            wider: str | None = shipped("phases.yaml")["wider"].get(phases[0])
            return wider if wider in phases else phases[0]
    return None


def phase_of_exception(frames: Sequence[str]) -> str | None:
    """init, load, forward, backward, optimizer or collective; None if no frame tells.

    `frames`: "file:line function", outermost first, as `log_events.frames` holds them. The innermost frame that
    tells decides, unless it is part of something wider: recomputing activations is a forward inside backward, and
    moving a module is part of loading it.
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
