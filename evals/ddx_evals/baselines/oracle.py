"""Answers from the truth: any score below 1.0 is a fault in the incident or in a scorer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddx_evals.baselines.answers import diagnosed, healthy, undecided
from ddx_evals.baselines.case import Answer, Case
from ddx_evals.incidents.truth import Culprits
from ddx_tools.model.diagnosis import Claim, Level, Location, Party, Verdict

_LONGEST_QUOTE = 400
_AROUND = 100
"""Characters quoted on each side of a key fact: a single word could occur anywhere."""


def oracle(case: Case) -> Answer:
    """The right answer, with a genuine quote of a key fact."""
    right = case.truth.views[case.view]
    if right.verdict is Verdict.HEALTHY:
        return Answer(healthy())
    if right.verdict is Verdict.UNDECIDED:
        return Answer(undecided(case.truth.deciding_fact))
    claims = [next(_key_facts(case), None) or _first_line(case)]
    culprits = _party(case.truth.culprits)
    return Answer(diagnosed(case.truth.cause, culprits, claims, probability=1.0, level=Level.ESTABLISHED))


def _key_facts(case: Case) -> Iterator[Claim]:
    for fact in case.truth.evidence:
        for name, text in case.texts.items():
            if found := fact.found_in(name, text):
                yield _claim(name, _with_its_line(found))


def _with_its_line(found: re.Match[str]) -> str:
    before = found.string[max(0, found.start() - _AROUND) : found.start()].rpartition("\n")[2]
    after = found.string[found.end() : found.end() + _AROUND].partition("\n")[0]
    return f"{before}{found[0]}{after}"


def _first_line(case: Case) -> Claim:
    name, text = next((name, text) for name, text in case.texts.items() if text.strip())
    return _claim(name, max(text.splitlines(), key=len)[:_LONGEST_QUOTE])


def _claim(source: str, quote: str) -> Claim:
    return Claim(finding="", claim="", source=source, quote=quote)


def _party(culprits: Culprits) -> Party:
    return Party(
        ranks=list(culprits.ranks),
        hosts=list(culprits.hosts),
        devices=list(culprits.devices),
        locations=[Location(file=place.file, line=place.line, function=place.function) for place in culprits.locations],
    )
