"""The case file of an investigation: the ranks and their waits, people's notes, and lines that separate causes."""

from __future__ import annotations

from ddx_tools.analysis.reduction.excerpts import case_file
from ddx_tools.analysis.reduction.kept_text import kept_texts
from ddx_tools.diagnosis.waits import Waits
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.show.addresses import NOTE, Names, Thing
from ddx_tools.investigation.show.ranks import all_ranks
from ddx_tools.investigation.show.waits import wait_lines
from ddx_tools.model.diagnosis import CaseFile, CasePart

CASE_BYTES = 4_300
"""Limit on the parts as JSON; the answer around them has the rest of 6,000."""
_MOST_WAITS, _MOST_RANKS = 12, 6


def case_of(store: Store, names: Names, waits: Waits | None, most_bytes: int = CASE_BYTES) -> CaseFile:
    """Build the case file: the excerpts of the material that may decide between causes, whatever they are.

    It holds who waits for whom, an overview of the ranks, notes, and unusual lines of texts. `most_bytes` limits its
    size; `names` gives each excerpt its address.
    """
    seen = []
    if waits is not None and waits.graph.edges:
        seen.append(CasePart(at=Thing.WAITS, text="\n".join(wait_lines(waits)[:_MOST_WAITS])))
    if store.holds_any(["ranks", "stack_threads", "fr_dumps"]):
        seen.append(CasePart(at=Thing.RANKS, text="\n".join(all_ranks(store)[:_MOST_RANKS])))
    return case_file(kept_texts(store), most_bytes, lambda text, line: names.words(text.source, line) or NOTE, seen)
