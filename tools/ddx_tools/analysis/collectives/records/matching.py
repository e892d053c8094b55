"""Collectives that do not match: another operation, size or data type at the same (group, sequence number).

Nothing here depends on when the dumps were taken: what was recorded under one number belongs together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ddx_tools.analysis.collectives import raising
from ddx_tools.analysis.collectives.raising import Aspect, Shown
from ddx_tools.analysis.collectives.records.aborted import aborted_in
from ddx_tools.analysis.collectives.records.comparable import dtypes_to_agree_on, sizes_to_agree_on
from ddx_tools.analysis.collectives.records.left_out import left_out_calls
from ddx_tools.analysis.collectives.records.records import Entry, Group, Records
from ddx_tools.analysis.collectives.records.shown import locations, where
from ddx_tools.analysis.collectives.sides import Sides, part
from ddx_tools.model import Evidence, Finding

_MAX_EVIDENCE = 8
_MAX_CHECKED = 64
_ENTRIES_AT_ONCE = 512
"""A query costs more than the rows of some numbers of a small group."""


@dataclass(frozen=True)
class Disagreements:
    """Sequence numbers of one group at which the ranks' operations, sizes or types are not all the same."""

    ops: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    dtypes: tuple[int, ...] = ()


def disagreements(records: Records) -> dict[int, Disagreements]:
    """By group id. Some may be apparent only: a coalesced block holds several operations under one number."""
    found = {}
    for row in records.query(_DISAGREEMENTS):
        found[row["group_id"]] = Disagreements(*(tuple(row[name] or ()) for name in ("ops", "sizes", "dtypes")))
    return found


_DISAGREEMENTS = f"""
SELECT group_id, list(seq ORDER BY seq) FILTER (ops)[:{_MAX_CHECKED}] AS ops,
    list(seq ORDER BY seq) FILTER (sizes)[:{_MAX_CHECKED}] AS sizes,
    list(seq ORDER BY seq) FILTER (dtypes)[:{_MAX_CHECKED}] AS dtypes
FROM (
    SELECT group_id, seq, coalesce(ops, false) AS ops, coalesce(sizes, false) AS sizes,
        coalesce(dtypes, false) AS dtypes
    FROM differences WHERE ops OR sizes OR dtypes
) GROUP BY group_id
"""


def first_operation_mismatch(
    records: Records, group: Group, numbers: tuple[int, ...]
) -> tuple[int, dict[int, Entry], Sides] | None:
    """The first of some sequence numbers at which members really recorded different operations."""
    for seq, blocks in _blocks(records, group, numbers):
        if len({tuple(sorted(entry.op for entry in block)) for block in blocks.values()}) > 1:
            entries = {rank: block[-1] for rank, block in blocks.items()}
            return seq, entries, part({rank: entry.op for rank, entry in entries.items()})
    return None


def _blocks(records: Records, group: Group, numbers: Sequence[int]) -> Iterator[tuple[int, dict[int, list[Entry]]]]:
    """What each rank recorded under each of some numbers: one operation, or those of a coalesced block."""
    at_once = max(1, _ENTRIES_AT_ONCE // max(1, len(group.ranks())))
    for start in range(0, len(numbers), at_once):
        asked = list(numbers[start : start + at_once])
        blocks: dict[int, dict[int, list[Entry]]] = {seq: {} for seq in asked}
        for entry in records.entries(group, "NOT is_p2p AND op <> 'coalesced' AND seq IN ?", [asked]):
            blocks[entry.seq].setdefault(entry.rank, []).append(entry)
        yield from blocks.items()


def mismatches(records: Records, group: Group, found: Disagreements) -> list[Finding]:
    """Findings of one group. After the first different operation the numbers no longer belong together."""
    findings = []
    operation = first_operation_mismatch(records, group, found.ops)
    if operation is not None:
        findings.append(_operation_finding(records, group, *operation))
    end = operation[0] if operation else None
    # Where sizes differ too, it is another call rather than another precision.
    dtypes = tuple(seq for seq in found.dtypes if seq not in found.sizes)
    fields: tuple[tuple[Aspect, Callable[[Entry], str | None], tuple[int, ...]], ...] = (
        ("shape", sizes_to_agree_on, found.sizes),
        ("dtype", dtypes_to_agree_on, dtypes),
    )
    for aspect, key, numbers in fields:
        before = [seq for seq in numbers if end is None or seq < end]
        if finding := _field_finding(records, group, aspect, key, before):
            findings.append(finding)
    return findings


def _operation_finding(records: Records, group: Group, seq: int, entries: dict[int, Entry], sides: Sides) -> Finding:
    sides, left_out = _by_rounds(records, group, entries, sides)
    odd = entries[sides.deviating[0]]
    return raising.mismatch(
        "operation",
        sides,
        where(group, seq, odd.op),
        Shown(_evidence(entries, sides), locations([entries[rank] for rank in sides.deviating])),
        contexts=list(odd.contexts),
        own_contexts=_own_contexts(entries, sides),
        **left_out,
    )


def _by_rounds(records: Records, group: Group, entries: dict[int, Entry], sides: Sides) -> tuple[Sides, dict[str, Any]]:
    """The sides, and which calls the deviating ranks went around, if the rounds before tell it.

    Of two sides without a majority the rounds may single out the one that did not keep to them.
    """
    if len(sides.groups) != 2:
        return sides, {}
    found = []
    for odd, usual in (sides.groups[::-1], sides.groups) if sides.tie else (sides.groups[::-1],):
        calls = left_out_calls(records, group, [entries[rank] for rank in odd[1]], entries[usual[1][0]])
        if calls:
            found.append((Sides((usual, odd), odd[1], tie=False), calls))
    if len(found) != 1:
        return sides, {}
    known, left_out = found[0]
    names = [f"{call.op} at {place.short()}" if (place := call.location()) else call.op for call in left_out]
    return known, {"left_out": True, "left_out_calls": names}


def _own_contexts(entries: dict[int, Entry], sides: Sides) -> list[str]:
    """What encloses the deviating ranks' call and not the majority's."""
    if sides.tie:
        return []
    usual = entries[sides.groups[0][1][0]].contexts
    return [context for context in entries[sides.deviating[0]].contexts if context not in usual]


def _field_finding(
    records: Records,
    group: Group,
    aspect: Aspect,
    key: Callable[[Entry], str | None],
    numbers: list[int],
) -> Finding | None:
    """The first of some collectives whose members disagree on a field, and how many do."""
    first: tuple[int, dict[int, Entry], dict[int, str]] | None = None
    count = 0
    for seq, blocks in _blocks(records, group, numbers):
        keys = {rank: tuple(key(entry) for entry in block) for rank, block in blocks.items()}
        values = {rank: str(value) for rank, value in keys.items() if None not in value}
        if len(set(values.values())) > 1:
            count += 1
            if first is None:
                entries = {rank: block[-1] for rank, block in blocks.items()}
                names = {values[rank]: _shown(entries[rank], aspect) for rank in sorted(values, reverse=True)}
                first = seq, entries, {rank: names[value] for rank, value in values.items()}
    if first is None:
        return None
    seq, entries, shown = first
    aborted = aborted_in(records, group, {rank: entries[rank] for rank in shown}) if aspect == "shape" else None
    if aborted:
        shown[aborted.rank] = shown[aborted.like]
    sides = part(shown)
    finished = aborted is None and all(entry.done for entry in entries.values())
    odd, usual = entries.get(sides.deviating[0]), entries.get(sides.groups[0][1][0])
    return raising.mismatch(
        aspect,
        sides,
        where(group, seq, next(iter(entries.values())).op),
        Shown(_evidence(entries, sides), locations([entries[rank] for rank in sides.deviating if rank in entries])),
        more=(f" {aborted.words}" if aborted else "")
        + (" It finished all the same: the result is garbage." if finished else ""),
        finished=finished,
        collectives=count,
        called_elsewhere=_called_elsewhere(records, group, odd, usual) if odd and usual and not sides.tie else None,
    )


def _called_elsewhere(records: Records, group: Group, odd: Entry, usual: Entry) -> bool | None:
    """Whether different functions of the program made the calls; None if that is not recorded.

    A call without any line of the program is made by a thread of torch's own (DDP's reduction of gradients), if the
    record shows the lines of the rank's other calls.
    """
    if odd.user_file and usual.user_file:
        return (odd.user_file, odd.user_function) != (usual.user_file, usual.user_function)
    if not odd.user_file and not usual.user_file:
        return None
    bare = usual if odd.user_file else odd
    return True if any(records.entries(group, "rank = ? AND user_file IS NOT NULL", [bare.rank])) else None


def _shown(entry: Entry, aspect: Aspect) -> str:
    if aspect == "dtype":
        return dtypes_to_agree_on(entry) or ""
    shown = entry.input_sizes if entry.input_sizes not in (None, "[]") else entry.output_sizes
    return (shown or "")[:400]


def _evidence(entries: dict[int, Entry], sides: Sides) -> list[Evidence]:
    """The deviating ranks' entries, then one of the majority to hold against them."""
    ranks = list(sides.deviating)[: _MAX_EVIDENCE - 1]
    ranks += [group[0] for _, group in sides.groups if group[0] not in ranks]
    return [entries[rank].evidence() for rank in ranks[:_MAX_EVIDENCE] if rank in entries]
