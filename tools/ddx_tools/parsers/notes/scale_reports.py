"""Experiments with the number of GPUs or nodes, over a whole text: "works on 2 nodes. On 16 it hangs."."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ddx_tools.parsers.notes.outcomes import Clause, Outcome, outcome_of
from ddx_tools.parsers.notes.prose import Sentence

_NUMBERS = {
    "one": 1,
    "single": 1,
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "eight": 8,
    "sixteen": 16,
}
_COUNT = re.compile(
    r"\b(\d{1,5}|one|two|three|four|five|six|eight|sixteen|single)(?: (?:or|and) more|\+)?"
    r"[ -]?(?:[x×] ?)?(?:[a-z]{0,3}\d{2,4}[a-z]{0,4} )?"
    r"(gpus?|cards?|devices?|ranks?|process(?:es)?|nodes?|machines?|hosts?|servers?)\b"
)
_OF_ONE = re.compile(r"\b(?:one|1|single) (?:gpu|node|card|machine)s? (?:of|per)\b|\b(?:per|each|every) \w{1,8}$")
_UNITS = {"gpu": "gpu", "card": "gpu", "device": "gpu", "rank": "gpu", "process": "gpu", "processe": "gpu"}


def counts_in(text: str) -> Iterator[tuple[str, int]]:
    """(gpu or node, how many) of every count in a text of lower case."""
    for match in _COUNT.finditer(text):
        number = int(match[1]) if match[1].isdigit() else _NUMBERS[match[1]]
        yield _UNITS.get(match[2].rstrip("s"), "node"), number


@dataclass
class ScaleReports:
    """What was said of each scale."""

    _seen: list[tuple[str, int, Outcome, Sentence]] = field(default_factory=list)

    def take(self, parts: Sequence[Clause], sentence: Sentence) -> None:
        """Read the counts of a sentence's clauses, each with how it went."""
        outcomes = [outcome_of(part.text) for part in parts]
        for index, part in enumerate(parts):
            if _OF_ONE.search(part.text):
                continue
            outcome = outcomes[index] or next((o for o in outcomes[index + 1 :] if o), None)
            self._seen += [(unit, number, outcome, sentence) for unit, number in counts_in(part.text)]

    def facts(self) -> Iterator[tuple[str, Sentence]]:
        """`works_with_fewer_ranks`, if every scale that works is smaller than every one that fails."""
        for unit in ("node", "gpu"):
            good = [(number, sentence) for of, number, went, sentence in self._seen if (of, went) == (unit, "good")]
            bad = [number for of, number, went, _ in self._seen if (of, went) == (unit, "bad")]
            most = max(good, key=lambda scale: scale[0], default=None)
            if most and bad and 1 < most[0] < min(bad):
                yield "works_with_fewer_ranks", most[1]
                return
