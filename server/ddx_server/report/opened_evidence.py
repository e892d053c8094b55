"""The quotes of an answer, with the lines around each in its source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ddx_tools.evidence.store import Store
from ddx_tools.investigation.lookup import in_store
from ddx_tools.investigation.run import bundle_of, this_machine
from ddx_tools.investigation.session.capture import Machine
from ddx_tools.investigation.show.addresses import NOTE, Names, Thing, parse_words
from ddx_tools.investigation.show.material import NumberedLine, around, brought, of_bundle, readable_lines
from ddx_tools.model.diagnosis import Claim
from ddx_tools.model.errors import DdxError
from ddx_tools.sources.bundle import Bundle
from ddx_tools.sources.host import UNKNOWN_HOST

_MOST_OPENED, _MOST_LINES, _LONGEST = 40, 60, 600
_MOST_FILES_KEPT = 4
"""This many files are kept in memory: quotes of one file mostly follow each other."""


@dataclass(frozen=True)
class OpenedClaim:
    """A claim with its quote, and lines from its source."""

    claim: Claim
    lines: list[NumberedLine]
    """Empty if the source cannot be opened here."""
    quoted: range
    """The numbers of the quoted lines; empty if the source has no line numbers."""


def opened_evidence(
    store: Store, claims: Sequence[Claim], names: Names, target: Sequence[str], machine: Machine = this_machine
) -> list[OpenedClaim]:
    """Add to each claim the lines around its quote; files are read on `machine`, each place once."""
    known: dict[tuple[str, int], list[NumberedLine]] = {}
    opened = []
    with ExitStack() as stack:
        read_bytes = _reader(target, stack, machine)
        read = lru_cache(_MOST_FILES_KEPT)(lambda path: readable_lines(read_bytes(path)))
        for claim in claims:
            count = claim.quote.count("\n") + 1
            place = (claim.source, count)
            if place not in known:
                full = len(known) >= _MOST_OPENED or not claim.quote or claim.source in ("", NOTE)
                known[place] = [] if full else _lines(store, claim.source, count, names, read)
            line = int(end) if (end := claim.source.rpartition(":")[2]).isdigit() else None
            opened.append(OpenedClaim(claim, known[place], range(line, line + count) if line else range(0)))
    return opened


def _reader(target: Sequence[str], stack: ExitStack, machine: Machine) -> Callable[[str], bytes]:
    """A function that reads a file of the material; a bundle is unpacked only once."""
    if bundle := bundle_of(target):
        opened = stack.enter_context(Bundle(Path(bundle)))
        return lambda path: of_bundle(opened, path)
    files = [item for item in target if not item.isdigit()]
    return lambda path: brought(machine(UNKNOWN_HOST), path, files)


def _lines(
    store: Store, source: str, count: int, names: Names, read: Callable[[str], list[str] | None]
) -> list[NumberedLine]:
    try:
        words = parse_words(source.split(" "))
        if words.thing is Thing.MATERIAL:
            lines = around(read(words.name), words.name, words.number, count)
        else:
            lines = [(None, text) for text in in_store(store, words, names)]
    except (DdxError, OSError):  # the page has the quote; the lines around it are optional
        return []
    return [(number, text[:_LONGEST]) for number, text in lines[:_MOST_LINES]]
