"""How something went, in a person's words: it worked, it failed, or nothing is said.

The words stand in `outcomes` of `knowledge/reports.yaml`. A negation close before one turns it round ("does not
hang"), except where the silence of an error is meant ("no error": nobody said that it worked).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from ddx_tools.knowledge.load import shipped

Outcome = Literal["good", "bad"] | None

_NOTHING = re.compile("")
_MARKS = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "`": None, "*": None, '"': None, "\t": " "})
_CONTRACTIONS = (
    (re.compile(r"\bwon'?t\b"), "will not"),
    (re.compile(r"\b(?:can't|cant|cannot)\b"), "can not"),
    (re.compile(r"\b(does|did|do|is|was|are|were|has|had|have|could|would|should)n'?t\b"), r"\1 not"),
    (re.compile(r"\b(it|there)'s\b"), r"\1 is"),
    (re.compile(r"(?<=\w)'(?=\d)|(?<=[= ])'|'(?=[ ,.]|$)"), ""),
    (re.compile(r"\s{2,}"), " "),
)
_BREAK = re.compile(
    r"\s*(?:[,;()]|:(?=\s)|\s[-–]{1,2}\s|—|[-=]>|→"
    r"|\b(?:(?P<joined>and|or|nor)(?! more| fewer| less)|but|however"
    r"|while(?= (?:on|with|in|for|it|the))|whereas|although|though|yet|(?<!since )then|so|because)\b"
    r"(?! (?:on|then|so|so on)\b$))\s*"
)
_NEGATION = re.compile(
    r"\b(?:no|not|never|without|stop(?:s|ped)?|nor|neither|cease[sd]?|hardly|unable to|fail(?:s|ed)? to|none|nothing"
    r"|nobody) (?:(?!sure|clear|know|matter|only|because|why|that|just|surpris|even if)\w{1,14} ){0,2}$"
)
_SILENCE = re.compile(r"(?:error|exception|time|raise|messag)")


@dataclass(frozen=True, slots=True)
class ProseClause:
    """A part of a sentence that says one thing."""

    text: str
    start: int
    end: int
    joined: bool = False
    """Only an "and" or an "or" parts it from the one before."""


def normalised(text: str) -> str:
    """Lower case, no contractions, no marks of emphasis, single spaces."""
    text = text.translate(_MARKS).lower()
    for pattern, words in _CONTRACTIONS:
        text = pattern.sub(words, text)
    return text.strip()


def clauses(text: str) -> list[ProseClause]:
    """The clauses of a normalised sentence."""
    found, start, joined = [], 0, False
    for cut in _BREAK.finditer(text):
        if cut.start() > start:
            found.append(ProseClause(text[start : cut.start()], start, cut.start(), joined))
            joined = bool(cut["joined"])
        else:
            joined = joined and bool(cut["joined"])
        start = cut.end()
    if start < len(text):
        found.append(ProseClause(text[start:], start, len(text), joined))
    return found


def is_negated(text: str, position: int) -> bool:
    """Whether a negation stands close before a position."""
    return bool(_NEGATION.search(text[max(0, position - 60) : position]))


def outcome_of(text: str, start: int = 0, end: int = 0) -> Outcome:
    """What a clause says of how it went; of several statements the one next to `start`–`end` counts.

    What was tried (the words from `start` to `end`) is never its own outcome.
    """
    taken = [(start, end)] if end else []
    patterns = _patterns()
    if any(_free(match, taken) for pattern in patterns["unchanged"] for match in pattern.finditer(text)):
        return "bad"
    for ranks in (("resolved",), ("fails", "runs"), ("quiet",)):
        said: list[tuple[int, Outcome]] = []
        for rank in ranks:
            for pattern in patterns[rank]:
                said += _statements(pattern, rank, text, taken, start, end)
        if said:
            return min(said, key=lambda statement: statement[0])[1]
    return None


def _statements(
    pattern: re.Pattern[str], rank: str, text: str, taken: list[tuple[int, int]], start: int, end: int
) -> Iterator[tuple[int, Outcome]]:
    """(distance, outcome) of what one expression finds; what it finds is taken."""
    for match in pattern.finditer(text):
        if not _free(match, taken):
            continue
        good = rank != "fails"
        if is_negated(text, match.start()):
            if rank == "fails" and _SILENCE.match(match[0]):
                continue
            good = not good
        taken.append(match.span())
        distance = max(match.start() - end, start - match.end(), 0)
        yield ((distance, "good" if good else "bad"))


def _free(match: re.Match[str], taken: list[tuple[int, int]]) -> bool:
    return all(match.end() <= start or match.start() >= end for start, end in taken)


@cache
def _patterns() -> dict[str, list[re.Pattern[str]]]:
    return {rank: [re.compile(word) for word in words] for rank, words in outcome_words().items()}


# --- the vocabulary of user reports: `knowledge/reports.yaml`, checked and compiled


def _several(way: str | list[str]) -> list[str]:
    return [way] if isinstance(way, str) else way


class ProseFact(BaseModel, extra="forbid", frozen=True):
    """One entry of the vocabulary; what its expressions are, `expression` says."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]+$")
    kind: Literal["experiment", "moment", "circumstance", "question"]
    says: str
    contrary: str = ""
    any: list[Annotated[list[str], BeforeValidator(_several)]] = Field(min_length=1)
    implied: list[list[str]] = Field(default_factory=list)
    scope: Literal["clause", "sentence"] = "clause"
    not_with: list[str] = Field(default_factory=list)
    not_in_clause: list[str] = Field(default_factory=list)
    examples: list[str] = Field(min_length=1)
    contrary_examples: list[str] = Field(default_factory=list)
    near: list[str] = Field(min_length=1)


@cache
def expression(text: str) -> re.Pattern[str]:
    """An expression of the vocabulary, families filled in (KeyError for an unknown family)."""
    families: dict[str, str] = _content()["families"]
    return re.compile(re.sub(r"\{([a-z][a-z0-9_]*)\}", lambda name: families[name[1]], text))


@cache
def vocabulary() -> dict[str, ProseFact]:
    """All facts by id, in the order of the file. Raises ValueError if the file is wrong."""
    return {fact.id: fact for fact in map(ProseFact.model_validate, _content()["facts"])}


def outcome_words() -> dict[str, list[str]]:
    """Expressions by what they say of how it went, in the order in which they count."""
    words: dict[str, list[str]] = _content()["outcomes"]
    return words


@cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = shipped("reports.yaml")
    return content


def experiments_named(question: str) -> set[str]:
    """The experiments that a question mentions, whatever is said of their outcome."""
    text = normalised(question)
    return {
        fact.id
        for fact in vocabulary().values()
        if fact.kind == "experiment" and any(groups and _together(groups, text) is not None for groups in fact.any)
    }


def _together(groups: Sequence[str], text: str) -> re.Match[str] | None:
    """The first expression's match, if all of them stand in the text. (Of none: an empty match.)"""
    first: re.Match[str] | None = _NOTHING.match(text)
    for index, group in enumerate(groups):
        match = expression(group).search(text)
        if match is None:
            return None
        first = match if index == 0 else first
    return first
