"""Variables of one environment that do not go together: the rules of `contradictions.yaml`."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict

from ddx_tools.environment.knowledge import Problem, variables
from ddx_tools.environment.model import Environment, Judged
from ddx_tools.environment.versions import Library, Version
from ddx_tools.model import Severity
from ddx_tools.yaml_data import shipped

_OFF = frozenset({"0", "", "n", "no", "f", "false", "off"})
_SOCKETS = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
_MOST_SOCKETS = 64


class _Rule(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    variable: str
    beside: str
    when: dict[str, Literal["set", "unset", "enabled", "disabled"] | list[str]]
    problem: Problem = "contradiction"
    why: str
    advice: str
    differ: bool = False
    library: Library | None = None
    below: Version | None = None


class _Rules(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    rules: list[_Rule]
    at_most: list[tuple[str, str, Literal["below", "equal"]]]


@cache
def _rules() -> _Rules:
    return _Rules.model_validate(shipped("env_vars/contradictions.yaml"))


def contradictions(environment: Environment) -> Iterator[Judged]:
    """What does not go together in one environment."""
    for rule in _rules().rules:
        if _applies(rule, environment):
            severity = Severity.WARNING if rule.problem == "contradiction" else Severity.NOTICE
            yield _judged(environment, rule.variable, rule.beside, rule.problem, rule.why, rule.advice, severity)
    yield from _two_names(environment)
    yield from _bounds(environment)


def _applies(rule: _Rule, environment: Environment) -> bool:
    version = environment.versions.of(rule.library)
    if rule.below and version and version >= rule.below:
        return False
    if rule.differ and environment.text(rule.variable) == environment.text(rule.beside):
        return False
    return all(_holds(environment, name, wanted) for name, wanted in rule.when.items())


def _holds(environment: Environment, name: str, wanted: str | list[str]) -> bool:
    if wanted == "unset":
        return environment.is_unset(name) and (environment.whole or environment.kind in ("script", "manifest"))
    text = environment.text(name)
    if wanted == "set":
        return environment.get(name) is not None and text != ""
    if text is None:
        return False
    if isinstance(wanted, list):
        return any(fnmatch.fnmatchcase(text.strip().lower(), value.lower()) for value in wanted)
    return (text.strip().lower() in _OFF) == (wanted == "disabled")


def _judged(
    environment: Environment, name: str, other: str, problem: str, why: str, advice: str, severity: Severity
) -> Judged:
    value = environment.get(name)
    assert value is not None
    beside = environment.get(other)
    told = f"{other}={beside.shown}: {why}" if beside else why
    return Judged(name, value.shown, problem, told, advice, severity, value.evidence, with_=other)


def _two_names(environment: Environment) -> Iterator[Judged]:
    """An old and a new name of one variable with different values: the new one wins (getCvarInt, Utils.hpp)."""
    for name in environment.names():
        known = variables().get(name)
        for alias in known.aliases if known else []:
            ours, theirs = environment.text(name), environment.text(alias)
            if ours is not None and theirs is not None and ours != theirs:
                why = f"the old name says {theirs[:60]!r}; the new one wins where torch knows it"
                yield _judged(environment, name, alias, "contradiction", why, f"unset {alias}", Severity.WARNING)


def _bounds(environment: Environment) -> Iterator[Judged]:
    for low, high, how in _rules().at_most:
        first, second = environment.number(low), environment.number(high)
        if first is None or second is None or first < second or (first == second and how == "equal"):
            continue
        why = f"it has to be below {high}" if how == "below" else f"it is more than {high}"
        yield _judged(environment, low, high, "contradiction", why, "", Severity.WARNING)
    threads, sockets = (environment.number(name) for name in _SOCKETS)
    if threads and sockets and threads * sockets > _MOST_SOCKETS:
        why = f"together they may not exceed {_MOST_SOCKETS}"
        yield _judged(environment, *_SOCKETS, "out_of_range", why, "smaller values", Severity.WARNING)
