"""Knowledge about environment variables, from the files below `knowledge/env_vars/`, typed and accessed by name."""

from __future__ import annotations

import difflib
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ddx_tools.knowledge.load import shipped
from ddx_tools.model.versions import Library, Version

Problem = Literal[
    "unknown", "no_effect", "out_of_range", "deprecated", "contradiction", "dangerous", "leftover", "bad_format"
]
_NEAR = 0.85
"""Similarity (difflib's ratio) from which a name counts as a misspelling of another one."""
_FILES = ("nccl", "torch", "others")


class _Known(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Setting(_Known):
    """A noteworthy value of a variable."""

    values: list[str] = Field(default_factory=list, description="The values; empty means any value.")
    problem: Problem
    why: str
    advice: str
    since: Version | None = Field(None, description="Applies only from this version of the owner on.")
    severity: Literal["info", "notice", "warning"] | None = None


class Variable(_Known):
    """An environment variable that NCCL, torch, Gloo, CUDA or a launcher reads."""

    name: str = Field(pattern=r"^[A-Z][A-Z0-9_]+$")
    owner: Literal["nccl", "torch", "gloo", "cuda", "launcher"]
    type: Literal["bool", "flag", "int", "float", "enum", "list", "path", "string"] = Field(
        description="bool: 0 or 1; flag: also true or false; list: comma-separated `values`, ^ inverts."
    )
    values: list[str] = Field(default_factory=list, description="All valid values, case-insensitive.")
    range: tuple[int | None, int | None] | None = Field(None, description="Smallest and largest value, inclusive.")
    default: str | None = Field(None, description="The default in words.")
    defaults: dict[str, str] = Field(default_factory=dict, description="Defaults by the version from which they apply.")
    since: Version | None = Field(None, description="First version of the owner that reads it; NCCL: nccl_names.yaml.")
    removed: Version | None = Field(None, description="First version that no longer reads it.")
    deprecated: Version | None = None
    replaced_by: str | None = None
    aliases: list[str] = Field(default_factory=list, description="Other names that are still read; this one wins.")
    scope: Literal["all", "host", "rank"] | None = Field(
        None, description="all: must be equal on all ranks; host: may differ between hosts; rank: always differs."
    )
    purpose: str = ""
    danger: str = ""
    settings: list[Setting] = Field(default_factory=list)
    source: list[str] = Field(min_length=1)

    @property
    def library(self) -> Library | None:
        """The library to whose versions `since`, `removed`, `deprecated` and `defaults` refer."""
        return "nccl" if self.owner == "nccl" else "torch" if self.owner in ("torch", "gloo", "launcher") else None

    def default_in(self, version: Version | None) -> str | None:
        """The default in a version of the owner; None if it depends on an unknown version."""
        if not self.defaults:
            return self.default
        if version is None:
            return None
        fitting = [Version.of(since) for since in self.defaults if Version.of(since) <= version]
        return self.defaults[str(max(fitting))] if fitting else None


class Nonexistent(_Known):
    """A variable name that circulates in recipes but that nothing reads."""

    name: str
    why: str
    advice: str
    nearest: str | None = None


class KnownNames(_Known):
    """`names.yaml`."""

    complete: list[str]
    typing_errors: list[str]
    shown: list[str]
    foreign_prefixes: list[str]
    foreign: list[str]
    real: list[str]
    nonexistent: list[Nonexistent]
    nccl_of_torch: dict[str, Version]


class NcclNames(_Known):
    """The contents of `nccl_names.yaml`: the first and last release that reads each name."""

    first: Version
    last: Version
    names: dict[str, tuple[Version, Version]]


def _load(name: str) -> Any:
    return shipped(f"env_vars/{name}.yaml")


@cache
def variables() -> dict[str, Variable]:
    """Load all described variables, by name. Raises ValidationError if a file is invalid."""
    rows = [Variable.model_validate(row) for name in _FILES for row in _load(name)["variables"]]
    known = {row.name: row for row in rows}
    if len(known) != len(rows):
        raise ValueError("a variable is described twice")
    return known


@cache
def names() -> KnownNames:
    """Load `names.yaml`: which environment variable names are real, and who reads them.

    It also lists names that nothing reads, and the NCCL version that each torch version brings.
    """
    return KnownNames.model_validate(_load("names"))


@cache
def nccl_names() -> NcclNames:
    """Load the variable names that NCCL releases read."""
    return NcclNames.model_validate(_load("nccl_names"))


@cache
def nonexistent() -> dict[str, Nonexistent]:
    """Load variable names that nothing reads."""
    return {row.name: row for row in names().nonexistent}


@cache
def _real() -> frozenset[str]:
    return frozenset(variables()) | frozenset(nccl_names().names) | frozenset(names().real)


def is_real(name: str) -> bool:
    """Whether any version of NCCL, torch, CUDA or Gloo, or a program with the same prefix, reads a variable."""
    known = names()
    return name in _real() or name in known.foreign or name.startswith(tuple(known.foreign_prefixes))


def is_of_interest(name: str) -> bool:
    """Whether a variable is relevant to distributed training; others are not kept."""
    known = names()
    prefixes = (*known.complete, *known.typing_errors, *known.shown)
    return name in variables() or name in nonexistent() or name.startswith(prefixes)


def nearest(name: str) -> str | None:
    """The most similar real name, if a name looks like a misspelling; else None."""
    prefix = next((p for p in (*names().complete, *names().typing_errors) if name.startswith(p)), "")
    same_owner = sorted(real for real in _real() if real.startswith(prefix[:4]))
    close = difflib.get_close_matches(name, same_owner, n=1, cutoff=_NEAR)
    return close[0] if close else None
