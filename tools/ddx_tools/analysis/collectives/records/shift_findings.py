"""Findings about ranks whose calls are shifted against their peers'."""

from __future__ import annotations

from collections.abc import Set

from ddx_tools.analysis.collectives import raising
from ddx_tools.analysis.collectives.raising import Shown
from ddx_tools.analysis.collectives.records.call_sites import Compared, Shift, compare
from ddx_tools.analysis.collectives.records.records import Entry, Group, Records
from ddx_tools.analysis.collectives.records.shown import locations, where
from ddx_tools.model import Evidence, Finding, Severity, rank_list

_MAX_EVIDENCE = 6


def shifted_calls(records: Records, group: Group, with_sites: bool, blamed: Set[int] = frozenset()) -> list[Finding]:
    """One finding for the ranks that deviate in the same way at the same point: usually one rank.

    `blamed`: ranks that a mismatch in the group singles out already; they are no reference for the others.
    """
    compared = compare(records, group, with_sites, blamed)
    alike: dict[tuple[int, int, bool], list[Shift]] = {}
    for shift in compared.shifts:
        alike.setdefault((shift.seq, shift.calls, shift.ambiguous), []).append(shift)
    return [_finding(records, group, members, compared) for _, members in sorted(alike.items())]


def _finding(records: Records, group: Group, alike: list[Shift], compared: Compared) -> Finding:
    shift, tie = alike[0], compared.tie
    ranks = [each.rank for each in alike]
    calls = _around(records, group, shift, ranks)
    theirs = calls[shift.reference]
    extra = shift.calls > 0
    if extra:
        odd = _present(calls[shift.rank], shift.seq, shift.calls)
        others = [theirs[shift.seq]]
    else:
        odd = _present(theirs, shift.seq, -shift.calls)
        others = [calls[rank][shift.seq] for rank in ranks]
    singled_out = sorted({*ranks, shift.reference}) if tie else ranks
    return raising.finding(
        "collective.call_site_shift",
        Severity.FAILURE,
        singled_out,
        _summary(group, shift, ranks, odd, tie),
        where(group, shift.seq, odd[0].op),
        Shown(_evidence([*odd, *others][:_MAX_EVIDENCE], _pairing(calls, shift)), locations([*odd, *others])),
        kind="extra_call" if extra else "left_out",
        shift=shift.calls,
        call=_place(odd[0]),
        path=odd[0].path,
        compared="call_sites" if compared.with_sites else "operations_and_sizes",
        ambiguous=shift.ambiguous,
        minority=not tie,
        tie=tie,
        **{"instead_of" if extra else "went_to": _place(others[0])},
    )


def _around(records: Records, group: Group, shift: Shift, ranks: list[int]) -> dict[int, dict[int, Entry]]:
    """The calls of the deviating ranks and their reference where they part, by rank and number."""
    wanted = ", ".join(map(str, [*ranks, shift.reference]))
    condition = f"rank IN ({wanted}) AND NOT is_p2p AND op <> 'coalesced' AND seq BETWEEN ? AND ?"
    found: dict[int, dict[int, Entry]] = {}
    for entry in records.entries(group, condition, [shift.seq, shift.seq + abs(shift.calls)]):
        found.setdefault(entry.rank, {})[entry.seq] = entry
    return found


def _summary(group: Group, shift: Shift, ranks: list[int], odd: list[Entry], tie: bool) -> str:
    calls = f"{'one' if abs(shift.calls) == 1 else abs(shift.calls)} {odd[0].op}"
    did = f"made {calls} more than its peers" if shift.calls > 0 else f"left out {calls}"
    text = (
        f"{rank_list(ranks).capitalize()} {did} at {_place(odd[0])} (collective {shift.seq} of "
        f"{group.label}); from there on its calls pair with other calls of its peers."
    )
    if tie:
        text += f" Or rank {shift.reference} did the opposite: no majority tells which."
    elif shift.ambiguous:
        text += " What follows comes from one line on all ranks, so it may also be a call in place of another."
    return text


def _pairing(calls: dict[int, dict[int, Entry]], shift: Shift) -> Entry:
    """The call that shows how they pair from then on: the rank's next call is its peers' current one."""
    own = calls[shift.rank].get(shift.seq + max(shift.calls, 0))
    other = calls[shift.reference].get(shift.seq + max(-shift.calls, 0))
    return (own if shift.calls > 0 else other) or calls[shift.rank][shift.seq]


def _evidence(entries: list[Entry], pairing: Entry) -> list[Evidence]:
    return [entry.evidence() for entry in dict.fromkeys([*entries, pairing])]


def _present(entries: dict[int, Entry], seq: int, count: int) -> list[Entry]:
    return [entries[number] for number in range(seq, seq + count) if number in entries]


def _place(entry: Entry) -> str:
    place = entry.location()
    return place.short() if place else f"record {entry.record_id}"
