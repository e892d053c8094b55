"""What the user suspected or asked, answered: "is it the network? no: …". A guess is no evidence, but is answered."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from pydantic import BaseModel, Field

from ddx_tools.knowledge.load import shipped
from ddx_tools.knowledge.prose import sentences
from ddx_tools.knowledge.reports import normalised
from ddx_tools.model.diagnosis import CandidateCause, Diagnosis, Level, Verdict

_MOST_ANSWERS = 3
_GUESSES = re.compile(
    r"\?\s*$|\b(?:suspect\w{0,3}|(?:i|we) (?:think|guess|believe|assume)|maybe|perhaps|might"
    r"|could (?:it|this|that) be|probably|possibly|looks like|seems (?:to be|like)|wonder\w{0,3}|blame)\b"
)


class Suspicion(BaseModel, extra="forbid", populate_by_name=True):
    """One thing that people suspect."""

    named: str = Field(alias="is")
    words: str
    categories: list[str] = Field(default_factory=list)
    causes: list[str] = Field(default_factory=list)

    def means(self, cause: CandidateCause) -> bool:
        """Whether a cause would make it right."""
        return cause.id in self.causes or cause.category in self.categories


@cache
def suspicions() -> list[tuple[re.Pattern[str], Suspicion]]:
    """All that is known, with their words ready to be searched."""
    known = [Suspicion.model_validate(each) for each in shipped("suspicions.yaml")]
    return [(re.compile(one.words), one) for one in known]


def answers(said: Iterable[str], diagnosis: Diagnosis) -> list[str]:
    """An answer to each thing that somebody suspected, in the order in which it was said; a few of them."""
    suspected = dict.fromkeys(one.named for text in said for one in _suspected(text))
    known = {one.named: one for _, one in suspicions()}
    return [f"is it {name}? {_answer(known[name], diagnosis)}" for name in list(suspected)[:_MOST_ANSWERS]]


def _suspected(text: str) -> Iterator[Suspicion]:
    for sentence in sentences(text):
        plain = normalised(sentence.text)
        if _GUESSES.search(plain):
            yield from (one for words, one in suspicions() if words.search(plain))


def _answer(suspicion: Suspicion, diagnosis: Diagnosis) -> str:
    first = diagnosis.causes[0] if diagnosis.causes else None
    if diagnosis.verdict is Verdict.HEALTHY:
        return "no evidence for it: the job is healthy"
    if diagnosis.verdict is Verdict.DIAGNOSED and first:
        return f"yes: {first.id}" if suspicion.means(first) else f"no: {first.id}, {first.level}"
    meant = [cause for cause in diagnosis.causes if suspicion.means(cause)]
    if meant:
        return f"open: {_named(meant)} is not excluded"
    ruled_out = [out.id for out in diagnosis.ruled_out if out.id in suspicion.causes]
    return f"no: {ruled_out[0]} is ruled out" if ruled_out else "no evidence for it, none against it"


def _named(causes: Sequence[CandidateCause]) -> str:
    best = causes[0]
    return f"{best.id} ({'possible' if best.level is Level.HYPOTHESIS else best.level})"
