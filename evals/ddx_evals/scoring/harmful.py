"""Detects advice that makes things worse, from a short general list and from the page of the true cause."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ddx_evals.incidents.truth import Truth
from ddx_tools.diagnosis.playbook import Cause, load_playbooks
from ddx_tools.knowledge.load import load_yaml
from ddx_tools.model.diagnosis import Diagnosis

_SENTENCE = re.compile(r"(?<=[.;!?])\s+|\n")
_WARNS = re.compile(r"\b(?:not|never|don't|avoid|instead|rather than|without|no need|before you|only if|nor)\b", re.I)
_WORD = re.compile(r"[a-z_][a-z0-9_=-]{2,}")
_IDLE_WORDS = frozenset(
    {"and", "another", "for", "from", "into", "the", "that", "than", "them", "then", "this", "with"}
)
_SHARE_OF_WORDS, _SHARE_OF_SENTENCE = 0.8, 0.4
"""A sentence gives harmful advice if it has this share of a warning's words, and these are this share of it."""
_FEWEST_WORDS = 3


class _Rule(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    why: str
    pattern: str
    unless_cause: tuple[str, ...] = ()


def harmful_advice(answer: Diagnosis, truth: Truth) -> list[str]:
    """The sentences of an answer with harmful advice, each with the reason."""
    rules = [rule for rule in _rules() if not truth.right_causes & set(rule.unless_cause)]
    found = []
    for sentence in _advice(answer):
        if _WARNS.search(sentence):
            continue
        whys = [rule.why for rule in rules if re.search(rule.pattern, sentence, re.I)]
        whys += [f"the page of {truth.cause} warns against it" for words in _warned_of(truth) if _says(sentence, words)]
        if whys:
            found.append(f"{sentence[:200]} ({whys[0]})")
    return found


def _advice(answer: Diagnosis) -> Iterator[str]:
    asked = [answer.next_check.question] if answer.next_check else []
    for text in (*answer.fix, *answer.verify, *asked):
        yield from (sentence for sentence in _SENTENCE.split(text) if sentence.strip())


@cache
def _rules() -> tuple[_Rule, ...]:
    file = Path(__file__).with_name("harmful_advice.yaml")
    return tuple(_Rule.model_validate(rule) for rule in load_yaml(file.read_text(encoding="utf-8")))


def _warned_of(truth: Truth) -> Iterator[frozenset[str]]:
    """The words of each harmful step on the cause's page, without the reason."""
    page = load_playbooks().causes.get(truth.cause)
    for line in page.harmful if isinstance(page, Cause) else ():
        words = _words(line.partition(":")[0])
        if len(words) >= _FEWEST_WORDS:
            yield words


def _says(sentence: str, advice: frozenset[str]) -> bool:
    words = _words(sentence)
    said = len(advice & words)
    return said >= _SHARE_OF_WORDS * len(advice) and said >= _SHARE_OF_SENTENCE * len(words)


def _words(text: str) -> frozenset[str]:
    """The stems of the content words: "raising" and "raise" are the same advice."""
    return frozenset(
        re.sub(r"(?:ing|ed|es|e|s)$", "", word) for word in _WORD.findall(text.lower()) if word not in _IDLE_WORDS
    )
