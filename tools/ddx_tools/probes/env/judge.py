"""Judges each variable of an environment: whether it exists, is read, has a valid value, and is a good idea."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from pydantic import BaseModel

from ddx_tools.knowledge.load import shipped
from ddx_tools.knowledge.variables import (
    Problem,
    Setting,
    Variable,
    is_real,
    names,
    nccl_names,
    nearest,
    nonexistent,
    variables,
)
from ddx_tools.model.diagnosis import Evidence, Severity
from ddx_tools.model.launch import Environment, Value
from ddx_tools.model.versions import Library, Version
from ddx_tools.probes.env.values import complaint

_SEVERITY = {
    "out_of_range": Severity.WARNING,
    "bad_format": Severity.WARNING,
    "dangerous": Severity.WARNING,
    "contradiction": Severity.WARNING,
}
_OLDEST_SUPPORTED_NCCL = Version.of("2.14")
"""The NCCL of torch 2.0: variables that NCCL dropped earlier have no effect in any current job."""
_OLDER_THAN_MOST = Version.of("2.4")
"""A variable deprecated before this torch version is deprecated for nearly every job."""
_ON = frozenset({"1", "y", "yes", "t", "true"})


def judge(environment: Environment) -> list[JudgedVariable]:
    """Return the variables of an environment that are wrong or doubtful, with the problem and advice.

    For example names that nothing reads, invalid values and contradictions. They are in the environment's order;
    variables without a problem are left out.
    """
    found = [judged for value in environment.values for judged in _one(value, environment)]
    found += contradictions(environment)
    return list({(one.name, one.shown, one.problem, one.with_): one for one in reversed(found)}.values())[::-1]


def _one(value: Value, environment: Environment) -> Iterator[JudgedVariable]:
    known = variables().get(value.name)
    if not value.exported:
        if is_real(value.name) and known and known.owner in ("nccl", "torch", "gloo"):
            why = "it is assigned but not exported: programs that the script starts do not see it"
            yield _judged(value, "no_effect", why, f"export {value.name}", Severity.NOTICE)
        return
    if known is None:
        yield from _name(value, environment)
        return
    yield from _version(value, known, environment)
    if value.value is None:
        return
    if wrong := complaint(known, value.value):
        yield _judged(value, wrong.problem, wrong.why, wrong.advice, Severity.WARNING)
        return
    yield from _settings(value, known, environment)


def _judged(
    value: Value, problem: str, why: str, advice: str, severity: Severity | None = None, near: str | None = None
) -> JudgedVariable:
    severity = severity or _SEVERITY.get(problem, Severity.NOTICE)
    return JudgedVariable(value.name, value.shown, problem, why, advice, severity, value.evidence, near)


def _name(value: Value, environment: Environment) -> Iterator[JudgedVariable]:
    """A name that is not described: unknown, misspelt, or real but of no further interest."""
    name = value.name
    if gone := nonexistent().get(name):
        why = f"nothing reads it: {gone.why}"
        yield _judged(value, "unknown", why, gone.advice, Severity.WARNING, gone.nearest)
        return
    if name in nccl_names().names:
        yield from _nccl_version(value, environment)
        return
    if is_real(name):
        return
    if near := nearest(name):
        yield _judged(value, "unknown", "nothing reads this name", f"perhaps {near}", Severity.WARNING, near)
    elif name.startswith(tuple(names().complete)):
        first, last = nccl_names().first, nccl_names().last
        yield _judged(value, "unknown", f"no NCCL version from {first} to {last} reads it; a plugin may", "unset it")


def _version(value: Value, known: Variable, environment: Environment) -> Iterator[JudgedVariable]:
    if known.owner == "nccl" and (without_effect := list(_nccl_version(value, environment))):
        yield from without_effect
        return
    library = known.library
    version = environment.versions.of(library)
    what = f"{library} {version}"
    instead = f"use {known.replaced_by}" if known.replaced_by else "unset it"
    if version and known.since and version < known.since:
        old = next((alias for alias in known.aliases), None)
        if old is None or environment.is_unset(old):
            advice = f"use {old}" if old else f"it is read since {library} {known.since}"
            yield _judged(value, "no_effect", f"{what} does not read it", advice)
    elif version and known.removed and version >= known.removed:
        yield _judged(value, "no_effect", f"{what} no longer reads it", instead)
    elif known.deprecated and (version is None or version >= known.deprecated):
        severity = Severity.NOTICE if version or known.deprecated < _OLDER_THAN_MOST else Severity.INFO
        why = f"deprecated since {library} {known.deprecated}" + ("" if version else ", if that version runs")
        # Both names together are right for a script that must work with old and new versions.
        if known.replaced_by is None or environment.is_unset(known.replaced_by):
            yield _judged(value, "deprecated", why, instead, severity, known.replaced_by)


def _nccl_version(value: Value, environment: Environment) -> Iterator[JudgedVariable]:
    span = nccl_names().names.get(value.name)
    known = variables().get(value.name)
    if known and (span is None or known.owner != "nccl"):
        if span is None and known.owner == "nccl":
            yield _judged(value, "no_effect", "no NCCL version of recent years reads it", "unset it")
        return
    if span is None:
        return
    first, last = span
    version = environment.versions.nccl
    instead = f"use {known.replaced_by}" if known and known.replaced_by else "unset it"
    if last < _OLDEST_SUPPORTED_NCCL or (version and version > last and last < nccl_names().last):
        yield _judged(value, "no_effect", f"NCCL reads it only up to {last}", instead)
    elif version and version < first and nccl_names().first < first:
        yield _judged(value, "no_effect", f"NCCL {version} does not read it", f"it is read since NCCL {first}")


def _settings(value: Value, known: Variable, environment: Environment) -> Iterator[JudgedVariable]:
    for setting in known.settings:
        if _matches(setting, value.value or "", known):
            version = environment.versions.of(known.library)
            if setting.since and version is not None and version < setting.since:
                continue
            severity = Severity(setting.severity) if setting.severity else None
            if setting.since and version is None:
                severity = Severity.INFO
            yield _judged(value, setting.problem, setting.why, setting.advice, severity)


def _matches(setting: Setting, text: str, known: Variable) -> bool:
    if not setting.values:
        return text.strip() != ""
    given = text.strip().lower()
    if known.type == "bool" and given in _ON:
        given = "1"
    items = [given, *(item.strip() for item in given.split(","))]
    return any(value.lower() in items for value in setting.values)


# --- variables of one environment that contradict each other: the rules of `contradictions.yaml`

_OFF = frozenset({"0", "", "n", "no", "f", "false", "off"})
_SOCKETS = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
_MOST_SOCKETS = 64


class _Rule(BaseModel, extra="forbid", frozen=True):
    variable: str
    beside: str
    when: dict[str, Literal["set", "unset", "enabled", "disabled"] | list[str]]
    problem: Problem = "contradiction"
    why: str
    advice: str
    differ: bool = False
    library: Library | None = None
    below: Version | None = None


class _Rules(BaseModel, extra="forbid", frozen=True):
    rules: list[_Rule]
    at_most: list[tuple[str, str, Literal["below", "equal"]]]


@cache
def _rules() -> _Rules:
    return _Rules.model_validate(shipped("env_vars/contradictions.yaml"))


def contradictions(environment: Environment) -> Iterator[JudgedVariable]:
    """Yield the variables that contradict each other in one environment."""
    for rule in _rules().rules:
        if _applies(rule, environment):
            severity = Severity.WARNING if rule.problem == "contradiction" else Severity.NOTICE
            yield _contradiction(environment, rule.variable, rule.beside, rule.problem, rule.why, rule.advice, severity)
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


def _contradiction(
    environment: Environment, name: str, other: str, problem: str, why: str, advice: str, severity: Severity
) -> JudgedVariable:
    value = environment.get(name)
    assert value is not None
    beside = environment.get(other)
    told = f"{other}={beside.shown}: {why}" if beside else why
    return JudgedVariable(name, value.shown, problem, told, advice, severity, value.evidence, with_=other)


def _two_names(environment: Environment) -> Iterator[JudgedVariable]:
    """An old and a new name of one variable with different values: the new one wins (getCvarInt, Utils.hpp)."""
    for name in environment.names():
        known = variables().get(name)
        for alias in known.aliases if known else []:
            ours, theirs = environment.text(name), environment.text(alias)
            if ours is not None and theirs is not None and ours != theirs:
                why = f"the old name says {theirs[:60]!r}; the new one wins if torch knows it"
                yield _contradiction(environment, name, alias, "contradiction", why, f"unset {alias}", Severity.WARNING)


def _bounds(environment: Environment) -> Iterator[JudgedVariable]:
    for low, high, how in _rules().at_most:
        first, second = environment.number(low), environment.number(high)
        if first is None or second is None or first < second or (first == second and how == "equal"):
            continue
        why = f"it must be below {high}" if how == "below" else f"it exceeds {high}"
        yield _contradiction(environment, low, high, "contradiction", why, "", Severity.WARNING)
    threads, sockets = (environment.number(name) for name in _SOCKETS)
    if threads and sockets and threads * sockets > _MOST_SOCKETS:
        why = f"their product must not exceed {_MOST_SOCKETS}"
        yield _contradiction(environment, *_SOCKETS, "out_of_range", why, "smaller values", Severity.WARNING)


@dataclass(frozen=True)
class JudgedVariable:
    """A questionable variable of an environment, with the problem, the reason and advice."""

    name: str
    shown: str
    problem: str
    why: str
    advice: str
    severity: Severity
    evidence: Evidence
    nearest: str | None = None
    with_: str | None = None
    """The other variable of a contradiction."""
