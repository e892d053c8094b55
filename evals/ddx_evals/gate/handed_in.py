"""Measures submitted facts and findings: open incidents are judged again with what a reader would submit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ddx_evals.baselines import Case
from ddx_server.serve.workspace import HANDED_IN
from ddx_tools.diagnosis.submitted import HandedIn, fact_finding, read_handed_in
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.lookup import shown_of
from ddx_tools.investigation.run import this_machine
from ddx_tools.investigation.show.addresses import parse_words
from ddx_tools.knowledge.load import load_yaml
from ddx_tools.knowledge.resources import incidents_dir
from ddx_tools.model.diagnosis import Verdict
from ddx_tools.model.errors import DdxError, UnreadableInput
from ddx_tools.redaction.text import redact

FILE = "handed_in.yaml"
_READ_BESIDE = "text"
"""The basis of findings from texts beside the logs; left out, so that there is something to submit."""


class HandedInCase(BaseModel):
    """What a careful reader of one incident submits, written down before it was tried."""

    model_config = ConfigDict(extra="forbid")

    incident: str
    """`split/id`"""
    facts: list[str] = Field(default_factory=list)
    findings: list[HandedIn] = Field(default_factory=list)
    right: bool = True
    """Whether the first cause is right with these."""


class Collected(BaseModel):
    """A finding code that agents or people submitted, as a candidate for the catalogue."""

    code: str
    times: int
    incidents: int
    quotes: list[str]
    """The distinct quotes submitted for it, without secrets."""


def collected(places: Sequence[Path]) -> list[Collected]:
    """Collect the findings submitted in directories (of sessions, of scored tries) or files, most frequent first.

    Servers save them beside the incident (`findings.json`), `ddx add-finding --keep FILE` in that file. Raises
    UnreadableInput for a named file without findings; an unrelated file in a directory is skipped.
    """
    found: dict[str, list[tuple[Path, str]]] = {}
    for place in places:
        for file in sorted(place.rglob(HANDED_IN)) if place.is_dir() else [place]:
            try:
                told = read_handed_in(file.read_bytes())
            except UnreadableInput:
                if file == place:
                    raise
                continue
            for one in told:
                found.setdefault(one.code, []).append((file, redact(one.quote)))
    counted = [
        Collected(
            code=code,
            times=len(told),
            incidents=len({file for file, _ in told}),
            quotes=list(dict.fromkeys(quote for _, quote in told)),
        )
        for code, told in found.items()
    ]
    return sorted(counted, key=lambda one: (-one.times, one.code))


@dataclass(frozen=True)
class Judgement:
    """The judgement of one incident, with and without the submission."""

    open_without: bool
    right_with: bool
    first: str


@cache
def handed_in_cases() -> Mapping[str, HandedInCase]:
    """The submissions of all cases, by `split/id`."""
    told: Any = load_yaml((incidents_dir() / FILE).read_text(encoding="utf-8"))
    return {case.incident: case for case in TypeAdapter(list[HandedInCase]).validate_python(told)}


def judged_with(case: Case, handed: HandedInCase) -> Judgement:
    """Judge the material by itself, and with the submission."""
    seen = [finding for finding in case.found.findings if finding.attributes.get("basis") != _READ_BESIDE]
    alone = replace(case.found, findings=seen).judge()
    told = [*map(fact_finding, handed.facts), *(one.finding() for one in handed.findings)]
    now = replace(case.found, findings=[*seen, *told], told=told).judge()
    first = now.causes[0].id if now.causes else "-"
    return Judgement(alone.verdict is not Verdict.DIAGNOSED, first in case.truth.right_causes, first)


def doubts_of(case: Case, store: Store) -> Iterator[str]:
    """Yield quotes that are not in their source, and a first cause that differs from the file."""
    handed = handed_in_cases().get(f"{case.incident.split}/{case.incident.id}")
    if handed is None:
        return
    for one in handed.findings:
        try:
            shown = shown_of(store, parse_words([one.source]), case.found.names, [str(case.material)], this_machine)
        except DdxError as error:
            yield f"submitted: {one.source} cannot be opened ({error.message[:80]})"
            continue
        if one.quote not in shown.text:
            yield f"submitted: {one.source} does not show {one.quote[:80]!r}"
    judged = judged_with(case, handed)
    if not judged.open_without:
        yield "submitted: it is diagnosed without the submission"
    if judged.right_with != handed.right:
        yield f"submitted: the first cause is {judged.first}"
