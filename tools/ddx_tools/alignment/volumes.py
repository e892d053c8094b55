"""All-to-alls in which a group sends more than its members expect together, or less.

The sizes of an all_to_all differ by rank, but what all members send is what all receive. Who brings the wrong size
shows where the exchange has a way back (the gathering of tokens from experts, the backward pass): the neighbouring
exchange of each rank then has the same sizes the other way round, except at the odd one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from ddx_tools.alignment.comparable import EXCHANGES, elements
from ddx_tools.alignment.records import Entry, Records
from ddx_tools.alignment.sides import locations
from ddx_tools.alignment.splits import splits_are_recorded
from ddx_tools.alignment.waits import Hold
from ddx_tools.model import Finding, Severity, rank_list

_MAX_EVIDENCE = 6
_FEWEST = 3
"""Of two ranks either may be the odd one."""


def volume_mismatches(records: Records, holds: Iterable[Hold]) -> list[Finding]:
    """One finding for each all_to_all without recorded splits that all members are in and whose sizes do not add up."""
    return [
        finding
        for hold in holds
        if hold.op in EXCHANGES and hold.is_complete and (finding := _mismatch(records, hold)) is not None
    ]


def _mismatch(records: Records, hold: Hold) -> Finding | None:
    entries = {entry.rank: entry for entry in hold.entries()}
    if set(entries) != set(hold.group.ranks()) or splits_are_recorded(entries.values()):
        return None
    volumes = {rank: _volume(entry) for rank, entry in entries.items()}
    known = [volume for volume in volumes.values() if volume is not None]
    sent, received = sum(volume[0] for volume in known), sum(volume[1] for volume in known)
    if len(known) < len(entries) or sent == received:
        return None
    odd = _without_mirror(records, hold, entries)
    tie = len(odd) != 1
    ranks = sorted(entries) if tie else odd
    return Finding(
        code="collective.shape_mismatch",
        severity=Severity.FAILURE,
        ranks=ranks,
        group=hold.group.label,
        summary=f"The sizes of {hold.op} {hold.seq} of {hold.group.label} do not add up: its members send {sent} "
        f"elements and expect {received}."
        + ("" if tie else f" The exchange beside it has those of all but {rank_list(odd)} the other way round."),
        evidence=[entries[rank].evidence() for rank in ranks[:_MAX_EVIDENCE]],
        locations=locations([entries[rank] for rank in ranks[:_MAX_EVIDENCE]]),
        attributes={
            "seq": hold.seq,
            "operation": hold.op,
            "sent_elements": sent,
            "expected_elements": received,
            "finished": False,
            "minority": not tie,
            "tie": tie,
            "basis": "flight_records",
        },
    )


def _without_mirror(records: Records, hold: Hold, entries: Mapping[int, Entry]) -> list[int]:
    """The one rank whose sizes its neighbouring exchange does not have the other way round, while all others' do."""
    if hold.seq is None or len(entries) < _FEWEST:
        return []
    for beside in (hold.seq - 1, hold.seq + 1):
        others = records.collective(hold.group, beside)
        if others.keys() != entries.keys() or any(other.op != hold.op for other in others.values()):
            continue
        odd = [rank for rank, entry in entries.items() if _volume(entry) != _turned(_volume(others[rank]))]
        if len(odd) == 1:
            return odd
    return []


def _volume(entry: Entry) -> tuple[int, int] | None:
    """Elements sent and elements expected; None if one of them is not recorded."""
    sent, expected = (json.loads(elements(sizes) or "[]") for sizes in (entry.input_sizes, entry.output_sizes))
    return (sum(sent), sum(expected)) if sent and expected else None


def _turned(volume: tuple[int, int] | None) -> tuple[int, int] | None:
    return None if volume is None else (volume[1], volume[0])
