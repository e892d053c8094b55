"""Whether an incident is fit to score anybody with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from ddx_evals.incidents.incident import BUNDLE, Incident, IncidentError
from ddx_evals.incidents.leaks import leaks, telling_words
from ddx_evals.incidents.truth import CANARY, Truth, View
from ddx_evals.incidents.views import staged
from ddx_tools.bundle import Bundle
from ddx_tools.model import Verdict
from ddx_tools.playbook import load_playbooks

MOST_BYTES = 300 << 10
MOST_BYTES_OF_MANY_RANKS, MANY_RANKS = 600 << 10, 12
MOST_BYTES_SIMULATED = 1536 << 10
"""Hundreds of ranks fit into no less."""
_NEUTRAL_ID = re.compile(r"[0-9a-f]{4,12}")


def problems(incident: Incident) -> list[str]:
    """What is wrong with an incident; nothing if it may be used."""
    found = [*_of_truth(incident)]
    if incident.material.name == BUNDLE:
        found += [*_of_recorded_truth(incident), *_of_bundle(incident)]
    elif not any(incident.material.iterdir()):
        found.append("artifacts/ is empty")
    return found


def _of_truth(incident: Incident) -> Iterator[str]:
    truth = incident.truth
    causes = load_playbooks().causes
    unknown = {*truth.right_causes, *truth.innocent} - {*causes, Verdict.HEALTHY, Verdict.UNDECIDED}
    if unknown:
        yield f"no cause page: {', '.join(sorted(unknown))}"
    if both := truth.right_causes & set(truth.innocent):
        yield f"right and innocent at once: {', '.join(sorted(both))}"
    if truth.category and truth.cause in causes and truth.category != causes[truth.cause].category:
        yield f"category {truth.category!r}; the page of {truth.cause} says {causes[truth.cause].category!r}"


def _of_recorded_truth(incident: Incident) -> Iterator[str]:
    truth = incident.truth
    if truth.id != incident.id or not _NEUTRAL_ID.fullmatch(incident.id):
        yield f"the id {truth.id!r} of the truth and the directory {incident.id!r} have to be the same hex digits"
    if truth.canary != CANARY:
        yield "it lacks the canary"
    if truth.provenance is None or not truth.provenance.command:
        yield "provenance: the command that records it again is missing"
    diagnosed = truth.views[View.FULL].verdict is Verdict.DIAGNOSED
    if diagnosed and not truth.evidence:
        yield "evidence: a diagnosis has to rest on a key fact"
    for view, right in truth.views.items():
        if right.verdict is Verdict.UNDECIDED and not right.check:
            yield f"views.{view}: where undecided is right, `check` says which check settles it"
        if right.verdict is Verdict.UNDECIDED and not re.search(right.check, truth.deciding_fact, re.I):
            yield f"views.{view}: `check` does not match the deciding fact"
    if words := telling_words(truth.prompt):
        yield f"prompt: says {words!r}"
    if truth.cause.replace("-", " ") in truth.prompt.lower():
        yield "prompt: names the cause"


def _of_bundle(incident: Incident) -> Iterator[str]:
    size_bytes = incident.material.stat().st_size
    most_bytes = _most_bytes(incident.truth)
    if size_bytes > most_bytes:
        yield f"{BUNDLE} has {size_bytes >> 10} KiB, more than {most_bytes >> 10}"
    with Bundle(incident.material) as bundle:
        texts = dict(texts_below(bundle.directory))
    yield from leaks(texts.items())
    for fact in incident.truth.evidence:
        if not any(fnmatch(name, fact.artefact) for name in texts):
            yield f"evidence: no file of the bundle is called {fact.artefact}"
    for view in incident.views:
        try:
            with staged(incident, view):
                pass
        except IncidentError as error:
            yield f"views.{view}: {error.message}"


def _most_bytes(truth: Truth) -> int:
    if truth.provenance and truth.provenance.kind == "simulated":
        return MOST_BYTES_SIMULATED
    ranks = sum(map(len, truth.layout.hosts.values()))
    return MOST_BYTES_OF_MANY_RANKS if ranks >= MANY_RANKS else MOST_BYTES


def texts_below(directory: Path) -> Iterator[tuple[str, str]]:
    """The files of a directory, by path in it, as text; bytes that are none become `�`."""
    for file in sorted(directory.rglob("*")):
        if file.is_file():
            yield file.relative_to(directory).as_posix(), file.read_bytes().decode("utf-8", "replace")
