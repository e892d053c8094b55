"""The vocabulary of user reports: `knowledge/reports.yaml`, checked and compiled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ddx_tools.yaml_data import shipped


class Fact(BaseModel):
    """One entry of the vocabulary."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[a-z][a-z0-9_]+$")
    kind: Literal["experiment", "moment", "circumstance", "question"]
    says: str
    contrary: str = ""
    any: list[str | list[str]] = Field(min_length=1)
    implied: list[list[str]] = Field(default_factory=list)
    scope: Literal["clause", "sentence"] = "clause"
    not_with: list[str] = Field(default_factory=list)
    not_in_clause: list[str] = Field(default_factory=list)
    examples: list[str] = Field(min_length=1)
    contrary_examples: list[str] = Field(default_factory=list)
    near: list[str] = Field(min_length=1)


@dataclass(frozen=True)
class CompiledFact:
    """A fact with its expressions, ready to search."""

    id: str
    is_moment: bool
    kind: str
    contrary: bool
    in_sentence: bool
    any: list[list[re.Pattern[str]]]
    implied: list[list[re.Pattern[str]]]
    not_with: list[re.Pattern[str]]
    not_in_clause: list[re.Pattern[str]]


@cache
def compiled_vocabulary() -> list[CompiledFact]:
    """All facts with their expressions, families filled in (KeyError for an unknown family)."""
    families: dict[str, str] = _content()["families"]

    def expression(text: str) -> re.Pattern[str]:
        return re.compile(re.sub(r"\{([a-z][a-z0-9_]*)\}", lambda name: families[name[1]], text))

    def groups(ways: Sequence[str | list[str]]) -> list[list[re.Pattern[str]]]:
        return [[expression(e) for e in ([way] if isinstance(way, str) else way)] for way in ways]

    return [
        CompiledFact(
            fact.id,
            fact.kind == "moment",
            fact.kind,
            bool(fact.contrary),
            fact.scope == "sentence",
            groups(fact.any),
            groups(fact.implied),
            [expression(e) for e in fact.not_with],
            [expression(e) for e in fact.not_in_clause],
        )
        for fact in vocabulary().values()
    ]


@cache
def vocabulary() -> dict[str, Fact]:
    """All facts by id, in the order of the file. Raises ValueError if the file is wrong."""
    return {fact.id: fact for fact in map(Fact.model_validate, _content()["facts"])}


def outcome_words() -> dict[str, list[str]]:
    """Expressions by what they say of how it went, in the order in which they count."""
    words: dict[str, list[str]] = _content()["outcomes"]
    return words


@cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = shipped("reports.yaml")
    return content
