"""Checks whether an incident is fit for scoring."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from ddx_evals.incidents.incident import BUNDLE, Incident, IncidentError
from ddx_evals.incidents.leaks import leaks, telling_words
from ddx_evals.incidents.truth import CANARY, Fact, Truth, View
from ddx_evals.incidents.views import staged_of, unpacked
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.model.diagnosis import Verdict
from ddx_tools.sources.bundle import Bundle, is_bundle
from ddx_tools.sources.packed_bundle import MANIFEST

MOST_BYTES = 300 << 10
MOST_BYTES_OF_MANY_RANKS, MANY_RANKS = 600 << 10, 12
MOST_BYTES_SIMULATED = 1536 << 10
"""Hundreds of ranks need this much."""
_NEUTRAL_ID = re.compile(r"[0-9a-f]{4,12}")


def problems(incident: Incident) -> list[str]:
    """The problems of an incident; empty if it may be used."""
    if incident.material.name == BUNDLE:
        return [*problems_of_truth(incident), *_of_bundle(incident)]
    return [*_of_truth(incident), *([] if any(incident.material.iterdir()) else ["artifacts/ is empty"])]


def problems_of_truth(incident: Incident) -> list[str]:
    """The problems of a recording's truth; the material need not exist yet."""
    return [*_of_truth(incident), *_of_recorded_truth(incident)]


def _of_truth(incident: Incident) -> Iterator[str]:
    truth = incident.truth
    causes = load_playbooks().causes
    unknown = {*truth.right_causes, *truth.innocent} - {*causes, Verdict.HEALTHY, Verdict.UNDECIDED}
    if unknown:
        yield f"no such cause: {', '.join(sorted(unknown))}"
    if both := truth.right_causes & set(truth.innocent):
        yield f"both right and innocent: {', '.join(sorted(both))}"
    if truth.category and truth.cause in causes and truth.category != causes[truth.cause].category:
        yield f"category {truth.category!r}; the page of {truth.cause} says {causes[truth.cause].category!r}"


def _of_recorded_truth(incident: Incident) -> Iterator[str]:
    truth = incident.truth
    if truth.id != incident.id or not _NEUTRAL_ID.fullmatch(incident.id):
        yield f"the id {truth.id!r} and the directory {incident.id!r} must be the same 4 to 12 hex digits"
    if truth.canary != CANARY:
        yield "it lacks the canary"
    if truth.provenance is None or not truth.provenance.command:
        yield "provenance: the command that records it again is missing"
    diagnosed = truth.views[View.FULL].verdict is Verdict.DIAGNOSED
    if diagnosed and not truth.evidence:
        yield "evidence: a diagnosis needs a key fact"
    for view, right in truth.views.items():
        if right.verdict is Verdict.UNDECIDED and not right.check:
            yield f"views.{view}: if undecided is right, `check` must say which check settles it"
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
    with unpacked(incident) as material:
        texts = dict(texts_below(material))
        yield from leaks(texts.items())
        yield from _of_facts(incident.truth.evidence, texts)
        for view in incident.views:
            try:
                shown = texts if view is View.FULL else _texts_of(material, incident, view)
            except IncidentError as error:
                yield f"views.{view}: {error.message}"
            else:
                yield from _of_view(incident, view, shown)


def _of_facts(facts: Sequence[Fact], texts: Mapping[str, str]) -> Iterator[str]:
    """Yield facts that nothing in a bundle shows. A file other than the named one may show it, and tools quote that."""
    raw = {name: text for name, text in texts.items() if name.startswith("raw/")}
    for fact in facts:
        if not any(fnmatch(name, fact.artefact) for name in raw):
            yield f"evidence: no file in the bundle is named {fact.artefact}"
        if not any(re.search(fact.pattern, text) for text in raw.values()):
            yield f"evidence: the pattern {fact.pattern} matches nothing in any file of the bundle"


def _texts_of(unpacked_material: Path, incident: Incident, view: View) -> dict[str, str]:
    with staged_of(unpacked_material, incident, view) as material:
        return dict(texts_below(material))


def _of_view(incident: Incident, view: View, texts: Mapping[str, str]) -> Iterator[str]:
    facts = incident.truth.evidence
    shown = [(name, text) for name, text in texts.items() if name != MANIFEST]
    diagnosed = incident.truth.views[view].verdict is Verdict.DIAGNOSED
    if diagnosed and facts and not any(fact.found_in(name, text) for fact in facts for name, text in shown):
        yield f"views.{view}: a diagnosis cannot quote a key fact: none is in a file named by `artefact`"


def _most_bytes(truth: Truth) -> int:
    if truth.provenance and truth.provenance.kind == "simulated":
        return MOST_BYTES_SIMULATED
    ranks = sum(map(len, truth.layout.hosts.values()))
    return MOST_BYTES_OF_MANY_RANKS if ranks >= MANY_RANKS else MOST_BYTES


def texts_below(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield the files of a directory as path and text; invalid bytes become `�`.

    Files of a bundle appear under the names of their answers, several of which may share a file.
    """
    names: dict[str, list[str]] = {}
    if is_bundle(directory):
        with Bundle(directory) as bundle:
            for entry in bundle.manifest.journal:
                if entry.content and entry.path:
                    names.setdefault(entry.content, []).append(entry.path)
    for file in sorted(directory.rglob("*")):
        if file.is_file():
            path, text = file.relative_to(directory).as_posix(), file.read_bytes().decode("utf-8", "replace")
            yield from ((name, text) for name in names.get(path, [path]))
