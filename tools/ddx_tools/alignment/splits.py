"""All-to-alls whose splits do not pair up: what one rank sends to another has to be what that one expects of it.

Recorded since format 2.11 (pytorch#195443). Before, only the sums are, which may differ between ranks that agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from ddx_tools.alignment.comparable import EXCHANGES
from ddx_tools.alignment.records import Entry
from ddx_tools.alignment.sides import locations
from ddx_tools.alignment.waits import Hold
from ddx_tools.model import Finding, Severity, rank_list

_MAX_EVIDENCE = 6


def split_mismatches(holds: Iterable[Hold]) -> list[Finding]:
    """One finding for each all_to_all that nobody gets out of, if the splits are recorded and do not pair up."""
    return [finding for hold in holds if hold.op in EXCHANGES and (finding := _mismatch(hold)) is not None]


def _mismatch(hold: Hold) -> Finding | None:
    members = hold.group.ranks()
    entries = {entry.rank: entry for entry in hold.entries()}
    sent = {rank: _splits(entry.input_splits, len(members)) for rank, entry in entries.items()}
    expected = {rank: _splits(entry.output_splits, len(members)) for rank, entry in entries.items()}
    wrong = [
        (source, target, rows, wanted)
        for i, source in enumerate(members)
        for j, target in enumerate(members)
        if (rows := _at(sent, source, j)) is not None
        and (wanted := _at(expected, target, i)) is not None
        and rows != wanted
    ]
    if not wrong:
        return None
    involved = [{source, target} for source, target, *_ in wrong]
    odd = sorted(set.intersection(*involved))
    tie = len(odd) != 1
    ranks = sorted(set.union(*involved)) if tie else odd
    source, target, rows, wanted = wrong[0]
    return Finding(
        code="collective.shape_mismatch",
        severity=Severity.FAILURE,
        ranks=ranks,
        group=hold.group.label,
        summary=f"The splits of {hold.op} {hold.seq} of {hold.group.label} do not pair up at {rank_list(ranks)}: "
        f"rank {source} sends {rows} rows to rank {target}, which expects {wanted}"
        + (f", and so with {len(wrong) - 1} more pairs." if len(wrong) > 1 else "."),
        evidence=[entries[rank].evidence() for rank in ranks if rank in entries][:_MAX_EVIDENCE],
        locations=locations([entries[rank] for rank in ranks if rank in entries][:_MAX_EVIDENCE]),
        attributes={
            "seq": hold.seq,
            "operation": hold.op,
            "splits": True,
            "pairs": len(wrong),
            "finished": False,
            "minority": not tie,
            "tie": tie,
            "basis": "flight_records",
        },
    )


def splits_are_recorded(entries: Iterable[Entry]) -> bool:
    """Whether some rank's splits are known."""
    return any(entry.input_splits is not None for entry in entries)


def _splits(text: str | None, size: int) -> list[int] | None:
    """The rows for each member in group order; None if not recorded. An empty list means equal parts."""
    found = None if text is None else json.loads(text)
    return found if isinstance(found, list) and len(found) == size else None


def _at(splits: Mapping[int, list[int] | None], rank: int, index: int) -> int | None:
    mine = splits.get(rank)
    return None if mine is None else mine[index]
