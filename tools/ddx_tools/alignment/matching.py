"""Collectives that do not match: another operation, size or data type at the same (group, sequence number).

Nothing here depends on when the dumps were taken: what was recorded under one number belongs together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ddx_tools.alignment.comparable import dtypes_to_agree_on, sizes_to_agree_on
from ddx_tools.alignment.records import Entry, Group
from ddx_tools.alignment.sides import Sides, locations, part
from ddx_tools.model import Evidence, Finding, Severity, rank_list

_MAX_EVIDENCE = 8


def aligned(group: Group) -> Iterator[tuple[int, dict[int, Entry]]]:
    """(sequence number, entries by rank) in order, where at least two ranks recorded something."""
    by_seq: dict[int, dict[int, Entry]] = {}
    for rank, entries in group.collectives.items():
        for seq, entry in entries.items():
            by_seq.setdefault(seq, {})[rank] = entry
    for seq in sorted(by_seq):
        if len(by_seq[seq]) > 1:
            yield seq, by_seq[seq]


def first_operation_mismatch(group: Group) -> tuple[int, dict[int, Entry], Sides] | None:
    """The first sequence number at which members recorded different operations."""
    for seq, entries in aligned(group):
        if len({entry.op for entry in entries.values()}) > 1:
            return seq, entries, part({rank: entry.op for rank, entry in entries.items()})
    return None


def mismatches(group: Group) -> list[Finding]:
    """Findings of one group. After the first different operation the numbers no longer belong together."""
    findings = []
    operation = first_operation_mismatch(group)
    if operation is not None:
        findings.append(_operation_finding(group, *operation))
    end = operation[0] if operation else None
    for code, kind, key in (
        ("collective.shape_mismatch", "sizes", sizes_to_agree_on),
        ("collective.dtype_mismatch", "dtypes", dtypes_to_agree_on),
    ):
        if finding := _field_finding(group, code, kind, key, end):
            findings.append(finding)
    return findings


def _operation_finding(group: Group, seq: int, entries: dict[int, Entry], sides: Sides) -> Finding:
    attributes = sides.attributes("operations", len(group.ranks()))
    return Finding(
        code="collective.operation_mismatch",
        severity=Severity.FAILURE,
        ranks=list(sides.deviating),
        group=group.label,
        summary=f"Collective {seq} of {group.label} is not the same on all ranks: {sides.words()}."
        + (" Neither side has a majority." if sides.tie else ""),
        evidence=_evidence(entries, sides),
        locations=locations([entries[rank] for rank in sides.deviating]),
        attributes={
            "seq": seq,
            "basis": "flight_records",
            "operation": entries[sides.deviating[0]].op,
            "peer_operation": None if sides.tie else entries[sides.groups[0][1][0]].op,
            "rank0": sides.deviating[0] == 0,
            **attributes,
            **_places(entries),
        },
    )


def _field_finding(
    group: Group, code: str, kind: str, key: Callable[[Entry], str | None], end: int | None
) -> Finding | None:
    """The first collective (before `end`) whose members disagree on a field, and how many do."""
    first: tuple[int, dict[int, Entry], Sides] | None = None
    count = 0
    for seq, entries in aligned(group):
        if end is not None and seq >= end:
            break
        keys = {rank: key(entry) for rank, entry in entries.items()}
        values = {rank: value for rank, value in keys.items() if value is not None}
        if len(set(values.values())) > 1:
            count += 1
            if first is None:
                names = {values[rank]: _shown(entries[rank], kind) for rank in sorted(values, reverse=True)}
                first = seq, entries, part({rank: names[value] for rank, value in values.items()})
    if first is None:
        return None
    seq, entries, sides = first
    op = entries[sides.deviating[0]].op
    finished = all(entry.done for entry in entries.values())
    return Finding(
        code=code,
        severity=Severity.FAILURE,
        ranks=list(sides.deviating),
        group=group.label,
        summary=f"{op} {seq} of {group.label} has different {'data types' if kind == 'dtypes' else 'sizes'}: "
        f"{sides.words()}." + (" It finished all the same: the result is garbage." if finished else ""),
        evidence=_evidence(entries, sides),
        locations=locations([entries[rank] for rank in sides.deviating]),
        attributes={
            "seq": seq,
            "operation": op,
            "collectives": count,
            "finished": finished,
            "basis": "flight_records",
            **sides.attributes(kind, len(group.ranks())),
            **_places(entries),
        },
    )


def _shown(entry: Entry, kind: str) -> str:
    if kind == "dtypes":
        return dtypes_to_agree_on(entry) or ""
    shown = entry.input_sizes if entry.input_sizes not in (None, "[]") else entry.output_sizes
    return (shown or "")[:400]


def _evidence(entries: dict[int, Entry], sides: Sides) -> list[Evidence]:
    """The deviating ranks' entries, then one of the majority to hold against them."""
    ranks = list(sides.deviating)[: _MAX_EVIDENCE - 1]
    ranks += [group[0] for _, group in sides.groups if group[0] not in ranks]
    return [entries[rank].evidence() for rank in ranks[:_MAX_EVIDENCE]]


def _places(entries: dict[int, Entry]) -> dict[str, dict[str, str]]:
    """User lines of all sides: `{"ranks 0-1, 3": "train.py:41 step"}`."""
    by_place: dict[str, list[int]] = {}
    for rank, entry in sorted(entries.items()):
        if place := entry.location():
            by_place.setdefault(place.short(), []).append(rank)
    return {"places": {rank_list(ranks): place for place, ranks in by_place.items()}} if by_place else {}
