"""Finds parts of an answer that need verification: quotes, sizes, what it calls missing, what it asks next."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from rich.console import Console

from ddx_evals.baselines import Case
from ddx_server.render.diagnosis import render_diagnosis
from ddx_server.serve.diagnosis_payload import diagnosis_json
from ddx_tools.diagnosis.checks import is_out_of_reach
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.lookup import in_store
from ddx_tools.investigation.show.addresses import NOTE, Thing, Words, parse_words
from ddx_tools.investigation.show.gaps import still_missing
from ddx_tools.investigation.show.material import around, brought, of_bundle, readable_lines
from ddx_tools.knowledge.finding_attributes import undeclared
from ddx_tools.model.diagnosis import Claim, Diagnosis
from ddx_tools.model.errors import DdxError
from ddx_tools.sources.bundle import Bundle, is_bundle
from ddx_tools.sources.host import UNKNOWN_HOST
from ddx_tools.sources.hosts.local import LocalHost

# About 6,000 bytes of the text are the case file, if the answer is not diagnosed.
TEXT_BYTES, JSON_BYTES = 7000, 8000
_WIDTH = 160


def doubts(case: Case, answer: Diagnosis, store: Store) -> Iterator[str]:
    """Yield what is doubtful in an answer, in words.

    `store` holds the rows of the investigation behind the answer.
    """
    for claim in [*answer.evidence, *(claim for suspect in answer.suspects for claim in suspect.evidence)]:
        if doubt := _of_quote(case, claim, store):
            yield f"{claim.finding}: {doubt}"
    for finding in case.found.findings:
        yield from undeclared(finding.code, finding.attributes)
    yield from sizes(answer)
    yield from _of_missing(answer, store)
    check = answer.next_check
    if check and is_out_of_reach(check, live=False):
        yield f"the next check runs {check.probe} on a job that does not exist"


def sizes(answer: Diagnosis) -> Iterator[str]:
    """Yield the printed forms of an answer that exceed their size limits."""
    out = io.StringIO()
    render_diagnosis(answer, Console(file=out, width=_WIDTH, highlight=False))
    for what, size, most in (
        ("text", len(out.getvalue().encode()), TEXT_BYTES),
        ("JSON", len(diagnosis_json(answer).encode()), JSON_BYTES),
    ):
        if size > most:
            yield f"{what} of {size} bytes"


def _of_quote(case: Case, claim: Claim, store: Store) -> str:
    if not claim.quote:
        return ""
    if claim.source == NOTE:
        return "" if claim.quote in case.truth.prompt else f"the note does not say {claim.quote[:80]!r}"
    try:
        words = parse_words([claim.source])
        opened = _shown(case, words, store)
    except DdxError as error:
        return f"{claim.source[:120]!r} cannot be opened ({error.message[:80]})"
    return "" if claim.quote in opened else f"{claim.source[-80:]} does not show {claim.quote[:160]!r}"


def _shown(case: Case, words: Words, store: Store) -> str:
    """The output of `ddx show` for some words; for a file, its own bytes."""
    if words.thing is not Thing.MATERIAL:
        return "\n".join(in_store(store, words, case.found.names))
    data, text = _opened(case.material, words.name)
    lines = "\n".join(line for _, line in around(text, words.name, words.number))
    return lines if lines.encode() in data else ""


@lru_cache(4)
def _opened(material: Path, path: str) -> tuple[bytes, list[str] | None]:
    """The bytes of a file, and its lines: the quotes of an answer are mostly of a few files."""
    if is_bundle(material):
        with Bundle(material) as bundle:
            data = of_bundle(bundle, path)
    else:
        data = brought(LocalHost(UNKNOWN_HOST), path, [str(material)])
    return data, readable_lines(data)


def _of_missing(answer: Diagnosis, store: Store) -> Iterator[str]:
    missing = still_missing(store, answer.missing)
    yield from (f"it is not missing: {one.what[:80]}" for one in answer.missing if one not in missing)
