"""Checks whether an answer's evidence is verbatim in the replayed material, and shows a key fact."""

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
    """All text that the investigator could have read: the raw material, and the tools' output about it.

    Runs of white space count as one blank, since a quote may have lost its line breaks.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._text = "\n".join(_flat(text) for text in texts)

    @classmethod
    def of(cls, material: Path, found: Investigation | None = None, said: Iterable[str] = ()) -> Replayed:
        """Collect the text of a bundle or directory, of its investigation, and of other tool output (`said`)."""
        texts = [*_raw_texts(material), *said]
        for finding in found.findings if found else ():
            texts += [finding.summary, *(evidence.quote for evidence in finding.evidence)]
            texts += [location.source for location in finding.locations if location.source]
        for result in found.results if found else ():
            texts += [" ".join(map(str, row.values())) for row in result.table]
        return cls(texts)

    def with_more(self, said: Iterable[str]) -> Replayed:
        """The same text, extended by other tool output."""
        return Replayed([self._text, *said])

    def holds(self, quote: str) -> bool:
        """Whether the text contains a quote verbatim, or up to its final `…`."""
        wanted = _flat(_CUT_OFF.sub("", quote))
        return len(wanted) >= _SHORTEST_QUOTE and wanted in self._text


@dataclass(frozen=True)
class Grounding:
    """The worth of an answer's quotes."""

    quotes: int = 0
    invented: list[str] = field(default_factory=list)
    """Quotes that are nowhere in the text."""
    key_fact: bool = False
    """Whether a genuine quote shows a key fact; any genuine quote counts if the truth has no key facts."""

    @property
    def grounded(self) -> bool:
        """Whether nothing is invented and a key fact is quoted."""
        return not self.invented and self.key_fact


def grounding(claims: Collection[Claim], facts: Collection[Fact], replayed: Replayed) -> Grounding:
    """Check the quotes of an answer against the replayed text.

    Material without lines (a trace, a snapshot) cannot be quoted: there, a claim in a tool's own words counts.
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
