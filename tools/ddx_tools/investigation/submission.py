"""Submits a finding, after checking its quote against the material."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddx_tools.diagnosis.submitted import HandedIn
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.lookup import shown_of
from ddx_tools.investigation.result import Investigation
from ddx_tools.investigation.run import investigate, this_machine
from ddx_tools.investigation.session.capture import Machine
from ddx_tools.investigation.show.addresses import parse_words
from ddx_tools.investigation.show.known_ranks import refuse_unknown_ranks
from ddx_tools.model.diagnosis import Finding
from ddx_tools.model.errors import UsageError

_LONGEST = 120


def with_checked(
    one: HandedIn,
    told: Sequence[Finding],
    target: Sequence[str],
    progress: Callable[[str], None] = lambda _: None,
    *,
    machine: Machine = this_machine,
) -> Investigation:
    """Check a finding and return an investigation that includes it. `told` are earlier submitted findings.

    Raises UsageError if its source cannot be opened or does not show the quote, or if it names an unknown rank.
    """
    finding = one.finding()
    words = parse_words([one.source])
    with Store() as store:
        found = investigate(target, progress=progress, machine=machine, store=store, told=[*told, finding])
        shown = shown_of(store, words, found.names, target, machine)
        if one.quote in shown.text:
            refuse_unknown_ranks(one.ranks, one.quote, shown.text, store)
    if one.quote not in shown.text:
        raise UsageError(
            f"{one.source} does not show {one.quote[:_LONGEST]!r}",
            f"Quote it verbatim: ddx show {one.source} prints the text there.",
        )
    return found
