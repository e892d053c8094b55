"""Findings about ranks whose calls are shifted relative to their peers' calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from ddx_tools.analysis.collectives import findings as raising
from ddx_tools.analysis.collectives.findings import FindingPlace
from ddx_tools.analysis.collectives.records.quotes import locations, where
from ddx_tools.analysis.collectives.records.records import Entry, Group, Records
from ddx_tools.model.diagnosis import Finding, Severity, rank_list
from ddx_tools.model.grouping import gathered

_MAX_EVIDENCE = 6


def shifted_calls(records: Records, group: Group, with_sites: bool, blamed: Set[int] = frozenset()) -> list[Finding]:
    """Return findings about ranks with an extra or skipped call, whose later calls pair with wrong ones.

    Ranks that deviate in the same way at the same point share a finding. `with_sites` compares call sites instead of
    sizes; `blamed` ranks, singled out by a mismatch, are no reference.
    """
    compared = compare(records, group, with_sites, blamed)
    alike = gathered(((shift.seq, shift.calls, shift.ambiguous), shift) for shift in compared.shifts)
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
    pointed = [*[*odd, *others][:_MAX_EVIDENCE], _pairing(calls, shift)]
    return raising.finding(
        "collective.call_site_shift",
        Severity.FAILURE,
        singled_out,
        _summary(group, shift, ranks, odd, tie),
        where(group, shift.seq, odd[0].op),
        FindingPlace([entry.evidence() for entry in dict.fromkeys(pointed)], locations([*odd, *others])),
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
    """The calls of the deviating ranks and their reference around the point where they diverge, by rank and number."""
    wanted = ", ".join(map(str, [*ranks, shift.reference]))
    condition = f"rank IN ({wanted}) AND NOT is_p2p AND op <> 'coalesced' AND seq BETWEEN ? AND ?"
    found: dict[int, dict[int, Entry]] = {}
    for entry in records.entries(group, condition, [shift.seq, shift.seq + abs(shift.calls)]):
        found.setdefault(entry.rank, {})[entry.seq] = entry
    return found


def _summary(group: Group, shift: Shift, ranks: list[int], odd: list[Entry], tie: bool) -> str:
    calls = f"{'one' if abs(shift.calls) == 1 else abs(shift.calls)} {odd[0].op}"
    did = f"made {calls} more than its peers" if shift.calls > 0 else f"skipped {calls}"
    text = (
        f"{rank_list(ranks).capitalize()} {did} at {_place(odd[0])} (collective {shift.seq} of "
        f"{group.label}); from there on its calls pair with the wrong calls of its peers."
    )
    if tie:
        text += f" Or rank {shift.reference} did the opposite: there is no majority to show which."
    elif shift.ambiguous:
        text += " All later calls come from one line on all ranks, so one call may also have replaced another."
    return text


def _pairing(calls: dict[int, dict[int, Entry]], shift: Shift) -> Entry:
    """The call that shows the pairing from then on: the rank's next call is its peers' current one."""
    own = calls[shift.rank].get(shift.seq + max(shift.calls, 0))
    other = calls[shift.reference].get(shift.seq + max(-shift.calls, 0))
    return (own if shift.calls > 0 else other) or calls[shift.rank][shift.seq]


def _present(entries: dict[int, Entry], seq: int, count: int) -> list[Entry]:
    return [entries[number] for number in range(seq, seq + count) if number in entries]


def _place(entry: Entry) -> str:
    place = entry.location()
    return place.short() if place else f"record {entry.record_id}"


# --- silent mispairing: a rank's calls are shifted relative to its peers' although operations and sizes agree
# One extra (or missing) call of the same operation and size pairs with the peers' next one, and nothing stops: only
# the call sites show it. A healthy program may also call from different lines on different ranks (the source of a
# broadcast and its receivers): that consistently substitutes one line for another, without a shift.

_MAX_SHIFT = 16
_WINDOW = 256
"""How many calls after the first conflict are examined."""
_CALLS_THAT_CONVINCE = 3
_MAX_COMPARED = 64
"""For how many ranks a shift is computed: if more deviate, the reference is just as likely to be the odd one."""

Token = tuple[int | None, int | None]
"""The identity of a call, as numbers from `rules`: its operation, and its call site or (without frames) sizes."""


@dataclass(frozen=True)
class Shift:
    """How one rank's calls are shifted relative to those of a reference rank."""

    rank: int
    reference: int
    seq: int
    """The first sequence number under which the two ranks recorded calls that do not belong together."""
    calls: int
    """Positive: how many extra calls the rank made there; negative: how many of the reference's calls it skipped."""
    ambiguous: bool
    """Later calls also fit unshifted, since they all come from one line: only the odd call shows the shift."""


@dataclass(frozen=True)
class Compared:
    """The outcome of comparing the calls of one group."""

    shifts: tuple[Shift, ...]
    with_sites: bool
    """Call sites were compared; otherwise only operations and sizes."""
    tie: bool
    """No majority (and no other evidence) shows which side deviates."""


def groups_with_conflicts(records: Records) -> dict[int, bool]:
    """Map the id of each group with conflicting calls to whether its call sites can be compared.

    Calls conflict if they have the same sequence number but another operation, size or call site.
    """
    with_sites = {
        row["group_id"]
        for row in records.query(
            "SELECT group_id FROM differences GROUP BY group_id HAVING min(first_placed) <> max(last_placed)"
        )
    }
    differing = records.query("SELECT DISTINCT group_id FROM differences WHERE ops OR sizes OR places")
    return {row["group_id"]: row["group_id"] in with_sites for row in differing}


def compare(records: Records, group: Group, with_sites: bool, blamed: Set[int] = frozenset()) -> Compared:
    """Find the ranks of a group whose sequence of calls is shifted by extra or skipped calls.

    The reference is the rank whose calls agree best with the others', except for `blamed` ranks, which other evidence
    shows to deviate. Without `with_sites`, operations and sizes are compared instead of call sites, and show only
    shifts that change their sequence.
    """
    calls = _Calls(records, group, with_sites)
    candidates = calls.agreement.keys() - blamed
    if len(calls.agreement) < 2 or not candidates:
        return Compared((), with_sites, tie=True)
    reference = max(sorted(candidates), key=calls.agreement.__getitem__)
    conflicts = calls.conflicts(reference)
    shifts = [
        shift
        for shift in _shifts(calls, reference, conflicts)
        if shift is not None and (with_sites or not shift.ambiguous)
    ]
    known = all(shift.rank in blamed for shift in shifts)
    return Compared(tuple(shifts), with_sites, tie=2 * len(shifts) >= len(calls.agreement) and not known)


_Pairs = list[tuple[int, Token, Token]]
"""Distinct pairs of one rank: (number, own call, the reference's call), in order of first occurrence."""


def _first_conflict(pairs: _Pairs) -> int | None:
    """The first pair of calls that differ, unless one line has consistently stood for a foreign line so far."""
    mine = {own for _, own, _ in pairs}
    theirs = {other for _, _, other in pairs}
    forward: dict[Token, Token] = {}
    backward: dict[Token, Token] = {}
    for seq, own, other in pairs:
        as_before = forward.setdefault(own, other) == other and backward.setdefault(other, own) == own
        if own != other and (own in theirs or other in mine or not as_before):
            return seq
    return None


class _Calls:
    """The calls of a group's ranks, compared in the store."""

    def __init__(self, records: Records, group: Group, with_sites: bool) -> None:
        self._records = records
        column = "place" if with_sites else "sizes"
        condition = "AND place IS NOT NULL" if with_sites else ""
        # The last call of a coalesced block stands for the whole block.
        records.store.execute(
            "CREATE OR REPLACE TEMP TABLE group_calls AS "
            f"SELECT rank, seq, last(op) AS op, last({column}) AS detail FROM tokens "
            f"WHERE group_id = {group.id} {condition} GROUP BY rank, seq"
        )
        self.agreement = {
            row["rank"]: row["score"]
            for row in records.query(
                "SELECT rank, sum(n) AS score FROM group_calls g JOIN (SELECT seq, op, detail, count(*) AS n "
                "FROM group_calls GROUP BY ALL) c USING (seq, op) WHERE g.detail IS NOT DISTINCT FROM c.detail "
                "GROUP BY rank"
            )
        }
        """For each rank, how many calls by all ranks equal its own call under the same number."""

    def conflicts(self, reference: int) -> dict[int, tuple[int, _Pairs]]:
        """Map each rank whose calls conflict with the reference rank's to (first conflict, pairs).

        The first conflict is a sequence number. The pairs are the rank's and the reference's distinct calls under equal
        sequence numbers.
        """
        rows = self._records.query(
            "SELECT g.rank, g.op, g.detail, r.op AS other_op, r.detail AS other_detail, min(seq) AS seq "
            "FROM group_calls g JOIN (SELECT * FROM group_calls WHERE rank = ?) r USING (seq) "
            "WHERE g.rank <> ? GROUP BY ALL ORDER BY g.rank, min(seq)",
            [reference, reference],
        )
        by_rank: dict[int, _Pairs] = gathered(
            (row["rank"], (row["seq"], (row["op"], row["detail"]), (row["other_op"], row["other_detail"])))
            for row in rows
        )
        starts = {rank: _first_conflict(pairs) for rank, pairs in by_rank.items()}
        return {rank: (start, by_rank[rank]) for rank, start in starts.items() if start is not None}

    def window(self, ranks: Iterable[int], start: int) -> dict[int, dict[int, Token]]:
        """The calls of the given ranks from a sequence number on."""
        wanted = sorted(set(ranks))
        found: dict[int, dict[int, Token]] = {rank: {} for rank in wanted}
        for row in self._records.query(
            f"SELECT * FROM group_calls WHERE rank IN ({', '.join(map(str, wanted))}) AND seq BETWEEN ? AND ?",
            [start, start + _WINDOW + _MAX_SHIFT],
        ):
            found[row["rank"]][row["seq"]] = (row["op"], row["detail"])
        return found

    def all_of(self, rank: int) -> set[Token]:
        """All distinct calls made by a rank."""
        rows: list[dict[str, Any]] = self._records.query(
            "SELECT DISTINCT op, detail FROM group_calls WHERE rank = ?", [rank]
        )
        return {(row["op"], row["detail"]) for row in rows}


def _shifts(calls: _Calls, reference: int, conflicts: Mapping[int, tuple[int, _Pairs]]) -> Iterable[Shift | None]:
    by_start = gathered((conflicts[rank][0], rank) for rank in sorted(conflicts)[:_MAX_COMPARED])
    for start, ranks in sorted(by_start.items()):
        window = calls.window([*ranks, reference], start)
        for rank in ranks:
            yield _shift(calls, rank, reference, start, conflicts[rank][1], window)


def _shift(
    calls: _Calls, rank: int, reference: int, start: int, pairs: _Pairs, window: Mapping[int, Mapping[int, Token]]
) -> Shift | None:
    mine, theirs = window[rank], window[reference]
    alike = {(own, other) for seq, own, other in pairs if seq < start}

    def run(own: int, other: int) -> tuple[int, int]:
        """Count how far the calls of the two ranks agree, as (agreeing calls, compared calls).

        `own` and `other` are the sequence numbers to start from on the rank and on the reference rank. Calls agree if
        they are equal, or were paired before the first conflict.
        """
        length = 0
        while own + length in mine and other + length in theirs:
            pair = mine[own + length], theirs[other + length]
            if pair[0] != pair[1] and pair not in alike:
                return length, length + 1
            length += 1
        return length, length

    unshifted = run(start + 1, start + 1)
    # The smallest shift that the following calls fit best: extra calls are tried before skipped ones.
    candidates = [calls for size in range(1, _MAX_SHIFT + 1) for calls in (size, -size)]
    fits = [(run(start + max(calls, 0), start + max(-calls, 0)), calls) for calls in candidates]
    (fitting, available), shift = max(fits, key=lambda fit: fit[0][0])
    if fitting < max(1, min(_CALLS_THAT_CONVINCE, available)):
        return None
    if unshifted[0] < fitting:
        return Shift(rank, reference, start, shift, False)
    # If only one of the two call sites is foreign to the other side, that side made the odd call.
    own_is_odd = mine[start] not in calls.all_of(reference)
    other_is_odd = theirs[start] not in calls.all_of(rank)
    if own_is_odd == other_is_odd:
        return None
    return Shift(rank, reference, start, 1 if own_is_odd else -1, True)
