"""What facts and findings from outside are worth: open incidents, judged again with what a reader hands in."""

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
"""The basis of what is read in texts beside the logs: left out, so that there is something to submit."""


class HandedInCase(BaseModel):
    """What a careful reader of one incident hands in, written down before it was tried."""

    model_config = ConfigDict(extra="forbid")

    incident: str
    """`split/id`"""
    facts: list[str] = Field(default_factory=list)
    findings: list[HandedIn] = Field(default_factory=list)
    right: bool = True
    """The first cause is right with these."""


class Collected(BaseModel):
    """A finding code that agents or people submitted, for the catalogue to grow from."""

    code: str
    times: int
    incidents: int
    quotes: list[str]
    """What it rested on, each once, without secrets."""


def collected(places: Sequence[Path]) -> list[Collected]:
    """What was submitted below some directories (of sessions, of scored tries) or in files, the most frequent first.

    Servers keep it beside the incident (`findings.json`), `ddx add-finding --keep FILE` in that file.
    Raises UnreadableInput for a named file that holds none; one that somebody else left among others is passed over.
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
    """One incident, without and with what was submitted."""

    open_without: bool
    right_with: bool
    first: str


@cache
def handed_in_cases() -> Mapping[str, HandedInCase]:
    """By `split/id`."""
    told: Any = load_yaml((incidents_dir() / FILE).read_text(encoding="utf-8"))
    return {case.incident: case for case in TypeAdapter(list[HandedInCase]).validate_python(told)}


def judged_with(case: Case, handed: HandedInCase) -> Judgement:
    """What the playbooks say of the material alone, and with what was submitted."""
    seen = [finding for finding in case.found.findings if finding.attributes.get("basis") != _READ_BESIDE]
    alone = replace(case.found, findings=seen).judge()
    told = [*map(fact_finding, handed.facts), *(one.finding() for one in handed.findings)]
    now = replace(case.found, findings=[*seen, *told], told=told).judge()
    first = now.causes[0].id if now.causes else "-"
    return Judgement(alone.verdict is not Verdict.DIAGNOSED, first in case.truth.right_causes, first)


def doubts_of(case: Case, store: Store) -> Iterator[str]:
    """Quotes that do not stand where they are said to, and a first cause that is not as the file says."""
    handed = handed_in_cases().get(f"{case.incident.split}/{case.incident.id}")
    if handed is None:
        return
    for one in handed.findings:
        try:
            shown = shown_of(store, parse_words([one.source]), case.found.names, [str(case.material)], this_machine)
        except DdxError as error:
            yield f"submitted: {one.source} opens nothing ({error.message[:80]})"
            continue
        if one.quote not in shown.text:
            yield f"submitted: {one.source} does not show {one.quote[:80]!r}"
    judged = judged_with(case, handed)
    if not judged.open_without:
        yield "submitted: it is diagnosed without"
    if judged.right_with != handed.right:
        yield f"submitted: the first cause is {judged.first}"
