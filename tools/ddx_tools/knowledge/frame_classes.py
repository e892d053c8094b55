"""Classifies stacks by the rules in `knowledge/frames.yaml`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from ddx_tools.knowledge.load import shipped
from ddx_tools.model.stack_frame import Frame


@dataclass(frozen=True)
class Activity:
    """What a thread is doing, as classified by the rules."""

    name: str
    operation: str | None = None


@dataclass(frozen=True)
class KernelView:
    """What the kernel reports about a thread; None where it reports nothing."""

    state: str | None = None
    wchan: str | None = None
    syscall: str | None = None
    blocked_on: str | None = None


_FRAME_KEYS = ("module", "function")
_FACT_KEYS = ("code", "wchan", "syscall", "blocked_on", "state")


class FrameRules:
    """The compiled rules of `frames.yaml`, and the classifications based on them."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.waits_for_peers = frozenset(data["waits_for_peers"])
        self.busy = frozenset(data["busy"])
        self.transfers = frozenset(data["transfers"])
        self._polls = frozenset(data["polls"])
        self._polling_wchan = re.compile(data["polling_wchan"])
        self._kernel_parts = {part: re.compile(pattern) for part, pattern in data["kernel_parts"].items()}
        self.starting = frozenset(data["starting"])
        self.may_wait_for_child = frozenset(data["may_wait_for_child"])
        self._words: dict[str, str] = data["words"]
        self._qualify = [re.compile(pattern) for pattern in data["qualify"]]
        self._activities = [_compile(rule) for rule in data["activities"]]
        self._contexts = [_compile(rule) for rule in data["contexts"]]

    def activity(
        self, frames: Sequence[Frame], running: bool, code: str | None, kernel: KernelView | None = None
    ) -> Activity:
        """Classify what a thread is doing by the first rule that matches its stack; `unknown` if none does.

        `frames` are innermost first; `running` is whether the thread is running. `code` is the source text of the
        innermost user line; None if unknown. `kernel` is what the kernel reports.
        """
        seen = kernel or KernelView()
        inner = _inside_user_code(frames)
        facts = {
            "code": code,
            "wchan": seen.wchan,
            "syscall": seen.syscall,
            "blocked_on": seen.blocked_on,
            "state": seen.state,
        }
        for rule in self._activities:
            frame = _matching_frame(rule, inner)
            if frame is None or not _facts_hold(rule, facts) or not _place_holds(rule, frames, inner):
                continue
            if rule.get("running") not in (None, running):
                continue
            operation = rule.get("operation")
            return Activity(rule["activity"], frame.bare_function if operation == "function" else operation)
        return Activity("unknown")

    def progress_shows_in(
        self, activity: str, wchan: str | None, running: bool
    ) -> Literal["nothing", "switched", "ran"]:
        """Return which counter proves progress of a thread whose stack did not change between two samples.

        "switched" means context switches and "ran" means CPU time. "nothing" means that neither proves anything, as for
        threads that poll: they wake up now and then without progress. `wchan` is the kernel function the thread waits
        in, if any.
        """
        waits = activity in self.waits_for_peers
        if activity in self._polls or (waits and wchan and self._polling_wchan.fullmatch(wchan)):
            return "nothing"
        return "switched" if waits and running else "ran"

    def kernel_part(self, wchan: str | None) -> str | None:
        """The kernel part that a wait function belongs to: `storage`, `gpu_driver` or `other`; None if no function."""
        if wchan is None:
            return None
        return next((part for part, pattern in self._kernel_parts.items() if pattern.fullmatch(wchan)), "other")

    def words(self, activity: str) -> str:
        """An activity in words, for a person."""
        return self._words.get(activity, activity)

    def wants_source(self, frame: Frame) -> bool:
        """Whether the source text of a frame's file is useful: user code, and the few named library files."""
        return frame.is_user or any(pattern.fullmatch(frame.module) for pattern in self._qualify)

    def contexts(self, frames: Sequence[Frame], user_functions: Sequence[str]) -> list[str]:
        """The contexts that enclose the innermost frame, each once, in rule order."""
        found: dict[str, None] = {}
        for rule in self._contexts:
            by_function = rule.get("user_function")
            if by_function:
                hit = any(by_function.fullmatch(name) for name in user_functions)
            else:
                hit = any(_frame_matches(rule, frame) for frame in frames if not frame.is_user)
            if hit:
                found[rule["context"]] = None
        return list(found)


@cache
def frame_rules() -> FrameRules:
    """Load the rules that ship with ddx."""
    return FrameRules(shipped("frames.yaml"))


_PLAIN_KEYS = {"activity", "context", "operation", "leaf", "running", "outermost"}
_NO_FRAME = Frame("", 0, "")


def _compile(rule: dict[str, Any]) -> dict[str, Any]:
    return {key: value if key in _PLAIN_KEYS else re.compile(str(value)) for key, value in rule.items()}


def _inside_user_code(frames: Sequence[Frame]) -> list[Frame]:
    """The library frames that the innermost user frame called, innermost first."""
    innermost_user = next((i for i, frame in enumerate(frames) if frame.is_user), len(frames))
    return list(frames[:innermost_user])


def _matching_frame(rule: dict[str, Any], inner: Sequence[Frame]) -> Frame | None:
    """The frame that a rule matches; a rule without frame keys matches none in particular."""
    if not any(key in rule for key in _FRAME_KEYS):
        return _NO_FRAME
    candidates = reversed(inner) if rule.get("outermost") else inner
    return next((frame for frame in candidates if _frame_matches(rule, frame)), None)


def _frame_matches(rule: dict[str, Any], frame: Frame) -> bool:
    module, function = rule.get("module"), rule.get("function")
    return (module is None or bool(module.fullmatch(frame.module))) and (
        function is None or bool(function.fullmatch(frame.bare_function))
    )


def _facts_hold(rule: dict[str, Any], facts: dict[str, str | None]) -> bool:
    for key in _FACT_KEYS:
        pattern, value = rule.get(key), facts[key]
        if pattern is None:
            continue
        if value is None:  # a fact that the kernel or the source did not report cannot hold
            return False
        found = pattern.search(value) if key in ("code", "blocked_on") else pattern.fullmatch(value)
        if not found:
            return False
    return True


def _place_holds(rule: dict[str, Any], frames: Sequence[Frame], inner: Sequence[Frame]) -> bool:
    if rule.get("leaf") == "user" and inner:
        return False
    within, function = rule.get("within"), rule.get("within_function")
    if within is None:
        return True
    return any(within.fullmatch(f.module) and (function is None or function.fullmatch(f.bare_function)) for f in frames)
