"""Whether the evidence of an answer stands where it says: verbatim in what was replayed, and on a key fact."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ddx_evals.incidents.truth import Fact
from ddx_evals.incidents.validation import texts_below
from ddx_tools.investigation.result import Investigation
from ddx_tools.model.diagnosis import Claim
from ddx_tools.sources.bundle import Bundle, is_bundle

_SHORTEST_QUOTE = 4
_CUT_OFF = re.compile(r"\s*(?:…|\.\.\.)\s*$")


class Replayed:
    """All text that whoever investigated could have read: the raw material, and what tools made of it.

    White space is compared as one blank: a quote may have lost its line breaks.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._text = "\n".join(_flat(text) for text in texts)

    @classmethod
    def of(cls, material: Path, found: Investigation | None = None, said: Iterable[str] = ()) -> Replayed:
        """Of a bundle or a directory of files, the probes' view of it, and whatever else tools returned (`said`)."""
        texts = [*_raw_texts(material), *said]
        for finding in found.findings if found else ():
            texts += [finding.summary, *(evidence.quote for evidence in finding.evidence)]
            texts += [location.source for location in finding.locations if location.source]
        for result in found.results if found else ():
            texts += [" ".join(map(str, row.values())) for row in result.table]
        return cls(texts)

    def with_more(self, said: Iterable[str]) -> Replayed:
        """The same, and what other tools returned."""
        return Replayed([self._text, *said])

    def holds(self, quote: str) -> bool:
        """Whether a quote stands there verbatim; one that ends in `…` up to there."""
        wanted = _flat(_CUT_OFF.sub("", quote))
        return len(wanted) >= _SHORTEST_QUOTE and wanted in self._text


@dataclass(frozen=True)
class Grounding:
    """What the quotes of an answer are worth."""

    quotes: int = 0
    invented: list[str] = field(default_factory=list)
    """Quotes that stand nowhere."""
    key_fact: bool = False
    """A genuine quote shows a key fact; also where the truth names none and anything genuine was quoted."""

    @property
    def grounded(self) -> bool:
        """Nothing is invented, and what decides is quoted."""
        return not self.invented and self.key_fact


def grounding(claims: Collection[Claim], facts: Collection[Fact], replayed: Replayed) -> Grounding:
    """Hold the quotes of an answer against what was replayed.

    Of material that holds no lines (a trace, a snapshot) nothing can be quoted: there a claim that a tool said in these
    words counts.
    """
    quotes = [claim.quote for claim in claims if claim.quote.strip()]
    said = [claim.claim for claim in claims if not claim.quote.strip() and replayed.holds(claim.claim)]
    invented = [quote for quote in quotes if not replayed.holds(quote)]
    genuine = [quote for quote in quotes if quote not in invented] + said
    hit = any(re.search(fact.pattern, quote) for fact in facts for quote in genuine)
    return Grounding(len(quotes), invented, hit or (not facts and bool(genuine)))


def _raw_texts(material: Path) -> list[str]:
    if material.is_dir() and not is_bundle(material):
        return [text for _, text in texts_below(material)]
    with Bundle(material) as bundle:
        return [text for _, text in texts_below(bundle.directory / "raw")]


def _flat(text: str) -> str:
    return " ".join(text.split())
