"""Gathers and scatters in which more than one rank takes itself for the root.

Only the root of a gather lists what it receives, only the root of a scatter what it sends: NCCL records an undefined
tensor of no elements for the others, Gloo nothing. The root of a broadcast or a reduce is in no record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from ddx_tools.analysis.collectives import raising
from ddx_tools.analysis.collectives.records.comparable import elements
from ddx_tools.analysis.collectives.records.records import Entry, Records
from ddx_tools.analysis.collectives.records.shown import shown, where
from ddx_tools.analysis.collectives.records.waits import Recorded
from ddx_tools.model import Finding, Severity, rank_list

_ROOTED = ("gather", "scatter")


def root_mismatches(records: Records, holds: Iterable[Recorded]) -> list[Finding]:
    """One finding for each such operation that nobody gets out of."""
    return [
        finding for hold in holds if hold.op in _ROOTED and (finding := _mismatch(records, hold, hold.op)) is not None
    ]


def _mismatch(records: Records, hold: Recorded, op: str) -> Finding | None:
    roots = sorted((entry for entry in hold.entries() if _is_root(entry)), key=lambda entry: entry.rank)
    complete = hold.is_complete and len(hold.entries()) == len(hold.group.ranks())
    if len(roots) == 1 or not (roots or complete):
        return None
    usual = _usual_roots(records, hold, op)
    odd = [entry.rank for entry in roots if entry.rank not in usual] if len(usual) == 1 else []
    tie = len(odd) != 1
    ranks = odd if not tie else [entry.rank for entry in roots] or sorted(hold.waiting)
    many = (
        f"{rank_list([entry.rank for entry in roots])} each take themselves for the root"
        if roots
        else "nobody is the root"
    )
    before = f"; so far it was {rank_list(usual)}" if len(usual) == 1 else ""
    entries = roots or hold.entries()
    return raising.finding(
        "collective.root_mismatch",
        Severity.FAILURE,
        ranks,
        f"In {op} (collective {hold.seq} of {hold.group.label}) {many}{before}.",
        where(hold.group, hold.seq, op),
        shown(entries, [entry for entry in entries if entry.rank in ranks]),
        roots=[entry.rank for entry in roots],
        minority=not tie,
        tie=tie,
    )


def _is_root(entry: Entry) -> bool:
    return _lists(entry.op, entry.input_sizes, entry.output_sizes)


def _lists(op: str, input_sizes: str | None, output_sizes: str | None) -> bool:
    counted = elements(output_sizes if op == "gather" else input_sizes)
    return counted is not None and sum(json.loads(counted)) > 0


def _usual_roots(records: Records, hold: Recorded, op: str) -> list[int]:
    """The ranks that were roots of this operation in this group before."""
    rows = records.query(
        "SELECT DISTINCT rank, input_sizes, output_sizes FROM recorded WHERE group_id = ? AND op = ? AND seq < ?",
        [hold.group.id, op, hold.seq],
    )
    return sorted({row["rank"] for row in rows if _lists(op, row["input_sizes"], row["output_sizes"])})
