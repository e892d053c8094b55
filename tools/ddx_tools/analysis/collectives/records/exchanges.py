"""Findings about all-to-alls whose sizes do not match: splits that do not pair up, or more sent than expected.

What one rank sends to another must be what the other expects from it. Splits are recorded since format 2.11
(pytorch#195443). Older formats record only sums, which differ per rank, but all members together send what all
receive. A return exchange (gathering tokens from experts, the backward pass) shows which rank passed the wrong size:
each rank's neighbouring exchange has the same sizes reversed, except on the odd rank. And if the members of such
groups passed equal sizes in every other exchange, a rank with another size in this one is the odd rank.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from ddx_tools.analysis.collectives import findings as raising
from ddx_tools.analysis.collectives.odd_ranks import part
from ddx_tools.analysis.collectives.operation_classes import class_of
from ddx_tools.analysis.collectives.records.comparable import elements
from ddx_tools.analysis.collectives.records.quotes import kind_of, shown, where
from ddx_tools.analysis.collectives.records.records import Entry, Records
from ddx_tools.analysis.collectives.records.sibling_groups import decided_by_siblings
from ddx_tools.analysis.collectives.records.waits import Recorded
from ddx_tools.model.diagnosis import Finding, Severity, rank_list


def exchange_mismatches(records: Records, holds: Iterable[Recorded]) -> list[Finding]:
    """One finding for each hanging all_to_all whose splits (or, if these are not recorded, sums) do not match."""
    found = []
    for hold in holds:
        if class_of(hold.op).exchange:
            complete = hold.is_complete
            unbalanced = _unbalanced(records, hold) if complete else None
            found += [_unpaired(hold), unbalanced or (_unlike_before(records, hold) if complete else None)]
    return [finding for finding in found if finding is not None]


def _unpaired(hold: Recorded) -> Finding | None:
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
    said = (
        f"The splits of {hold.op} {hold.seq} of {hold.group.label} do not pair up at {rank_list(ranks)}: "
        f"rank {source} sends {rows} rows to rank {target}, which expects {wanted}"
        + (f"; {len(wrong) - 1} more pairs disagree as well." if len(wrong) > 1 else ".")
    )
    return _finding(hold, ranks, said, entries, tie, splits=True)


def _finding(
    hold: Recorded, ranks: list[int], said: str, entries: Mapping[int, Entry], tie: bool, **more: bool
) -> Finding:
    at, pointed = where(hold.group, hold.seq, hold.op), shown([entries[rank] for rank in ranks if rank in entries])
    code = "collective.shape_mismatch"
    return raising.finding(
        code, Severity.FAILURE, ranks, said, at, pointed, **more, finished=False, minority=not tie, tie=tie
    )


def splits_are_recorded(entries: Iterable[Entry]) -> bool:
    """Whether the splits of at least one rank are recorded."""
    return any(entry.input_splits is not None for entry in entries)


def _splits(text: str | None, size: int) -> list[int] | None:
    """The number of rows for each member in group order; None if not recorded. An empty list means equal parts."""
    found = None if text is None else json.loads(text)
    return found if isinstance(found, list) and len(found) == size else None


def _at(splits: Mapping[int, list[int] | None], rank: int, index: int) -> int | None:
    mine = splits.get(rank)
    return None if mine is None else mine[index]


_FEWEST = 3
"""With only two ranks, either may be the odd one."""


def _unbalanced(records: Records, hold: Recorded) -> Finding | None:
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
    said = (
        f"The sizes of {hold.op} {hold.seq} of {hold.group.label} do not add up: its members send {sent} "
        f"elements and expect {received}."
        + ("" if tie else f" The neighbouring exchange mirrors the sizes of all ranks except {rank_list(odd)}.")
    )
    return _finding(hold, ranks, said, entries, tie)


def _without_mirror(records: Records, hold: Recorded, entries: Mapping[int, Entry]) -> list[int]:
    """The one rank whose sizes are not reversed in its neighbouring exchange, while all others' are."""
    if hold.seq is None or len(entries) < _FEWEST:
        return []
    for beside in (hold.seq - 1, hold.seq + 1):
        others = records.collective(hold.group, beside)
        if others.keys() != entries.keys() or any(other.op != hold.op for other in others.values()):
            continue
        odd = [rank for rank, entry in entries.items() if _volume(entry) != _volume(others[rank], turned=True)]
        if len(odd) == 1:
            return odd
    return []


def _volume(entry: Entry, *, turned: bool = False) -> tuple[int, int] | None:
    """Elements sent and elements expected (`turned`: expected and sent); None if one of them is not recorded."""
    ways = (entry.output_sizes, entry.input_sizes) if turned else (entry.input_sizes, entry.output_sizes)
    first, second = (json.loads(elements(sizes) or "[]") for sizes in ways)
    return (sum(first), sum(second)) if first and second else None


def _volume_in_words(entry: Entry) -> str:
    volume = _volume(entry)
    return "" if volume is None else f"{volume[0]} sent and {volume[1]} expected"


_HABIT = 8
"""This many other exchanges must be recorded before equal sizes on all members count as the usual pattern."""


def _unlike_before(records: Records, hold: Recorded) -> Finding | None:
    """Members with other sizes in this exchange, where sizes were equal on all members in every other exchange."""
    entries = {entry.rank: entry for entry in hold.entries()}
    if splits_are_recorded(entries.values()) or hold.seq is None:
        return None
    volumes = {rank: words for rank, entry in entries.items() if (words := _volume_in_words(entry))}
    sides = part(volumes)
    if len(volumes) < len(entries) or len(sides.groups) < 2 or not _sizes_agree(records, hold):
        return None
    sides = decided_by_siblings(records, hold.group, entries, sides, _volume_in_words)
    if sides.tie:
        return None
    said = (
        f"The sizes of {hold.op} {hold.seq} of {hold.group.label} differ: elements are {sides.words()}. In every other "
        "recorded exchange of such groups, all members passed equal sizes."
    )
    return _finding(hold, list(sides.deviating), said, entries, tie=False)


def _sizes_agree(records: Records, hold: Recorded) -> bool:
    """Whether groups of this kind had equal sizes on all members in all other exchanges, with enough exchanges seen."""
    alike = [group.id for group in records.groups.values() if kind_of(group) == kind_of(hold.group)]
    (row,) = records.query(
        "SELECT count(*) AS counted, count(*) FILTER (NOT same) AS unlike FROM ("
        "SELECT min(k.input_sizes) = max(k.input_sizes) AND min(k.output_sizes) = max(k.output_sizes) AS same "
        "FROM recorded_numbers n JOIN fr_calls k USING (call) JOIN rules r USING (call) "
        "WHERE r.exchange AND n.group_id IN ? AND NOT (n.group_id = ? AND n.seq = ?) "
        "GROUP BY n.group_id, n.seq HAVING count(*) > 1)",
        [alike, hold.group.id, hold.seq],
    )
    return bool(row["counted"] >= _HABIT and not row["unlike"])
