"""Silent mispairing: a rank's calls are shifted against its peers' although operations and sizes agree.

One more call (or one less) of the same operation and size pairs with the peers' next one, and nothing
stops: only the call sites show it. A healthy program may also call from different lines by rank (the source
of a broadcast and its receivers): that is a consistent substitution of one line for another, without a
shift.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass

from ddx_tools.alignment.comparable import sizes_to_agree_on
from ddx_tools.alignment.records import Entry, Group

_MAX_SHIFT = 16
_CALLS_THAT_CONVINCE = 3
_ROOTED = ("broadcast", "gather", "scatter", "reduce")
_INNERMOST_LINE = re.compile(r"^(.*?):\d+ ")

Token = tuple[str, str]
"""What identifies a call: its operation, and its call site or (without frames) its sizes."""


@dataclass(frozen=True)
class Shift:
    """How one rank's calls deviate from those of a reference rank."""

    rank: int
    reference: int
    seq: int
    """The first sequence number under which the two recorded calls that do not belong together."""
    calls: int
    """Above 0: the rank made so many extra calls there; below 0: it left so many of the reference's out."""
    ambiguous: bool
    """What follows fits unshifted as well, since it all comes from one line: only the odd call shows."""


@dataclass(frozen=True)
class Compared:
    """The outcome for one group."""

    shifts: tuple[Shift, ...]
    with_sites: bool
    """Call sites were compared; else only operations and sizes."""
    tie: bool
    """No majority (and no other evidence) says which side deviates."""


def compare(group: Group, blamed: Set[int] = frozenset()) -> Compared:
    """The ranks that are shifted against the rank that agrees with most.

    Without frames on at least two ranks, operations and sizes have to do: they show a shift only once the
    sequence of operations itself differs. `blamed` ranks deviate by other evidence and are no reference.
    """
    tokens = {
        rank: {seq: (entry.op, _site(entry)) for seq, entry in entries.items()}
        for rank, entries in group.collectives.items()
        if any(entry.site for entry in entries.values())
    }
    with_sites = len(tokens) > 1
    if not with_sites:
        tokens = {
            rank: {seq: (entry.op, sizes_to_agree_on(entry) or "") for seq, entry in entries.items()}
            for rank, entries in group.collectives.items()
        }
    candidates = tokens.keys() - blamed
    if len(tokens) < 2 or not candidates:
        return Compared((), with_sites, tie=True)
    reference = _most_agreeing(tokens, candidates)
    found = (_shift(rank, reference, mine, tokens[reference]) for rank, mine in sorted(tokens.items()))
    shifts = [shift for shift in found if shift is not None and (with_sites or not shift.ambiguous)]
    known = all(shift.rank in blamed for shift in shifts)
    return Compared(tuple(shifts), with_sites, tie=2 * len(shifts) >= len(tokens) and not known)


def _site(entry: Entry) -> str:
    """The call path; of a rooted operation without the innermost line, which often differs at the root."""
    site = entry.site or ""
    return _INNERMOST_LINE.sub(r"\1 ", site, count=1) if entry.op in _ROOTED else site


def _most_agreeing(tokens: Mapping[int, Mapping[int, Token]], candidates: Set[int]) -> int:
    """The candidate whose calls most ranks share, call by call; the lowest of equals."""
    counts: dict[int, Counter[Token]] = {}
    for sequence in tokens.values():
        for seq, token in sequence.items():
            counts.setdefault(seq, Counter())[token] += 1
    scores = {rank: sum(counts[seq][token] for seq, token in tokens[rank].items()) for rank in candidates}
    return max(sorted(scores), key=scores.__getitem__)


def _shift(rank: int, reference: int, mine: Mapping[int, Token], theirs: Mapping[int, Token]) -> Shift | None:
    common = sorted(mine.keys() & theirs.keys())
    pairs = {seq: (mine[seq], theirs[seq]) for seq in common}
    start = _first_conflict(pairs)
    if start is None:
        return None
    same = _Same({pair for seq, pair in pairs.items() if seq < start})
    unshifted = same.run(mine, theirs, start + 1, start + 1)
    # The smallest shift that the following calls fit best: extra calls of this rank before those it left out.
    candidates = [calls for size in range(1, _MAX_SHIFT + 1) for calls in (size, -size)]
    fits = [(same.run(mine, theirs, start + max(calls, 0), start + max(-calls, 0)), calls) for calls in candidates]
    (fitting, available), calls = max(fits, key=lambda fit: fit[0][0])
    if fitting < max(1, min(_CALLS_THAT_CONVINCE, available)):
        return None
    ambiguous = unshifted[0] >= fitting
    if ambiguous:
        odd = _odd_side(start, mine, theirs)
        return None if odd is None else Shift(rank, reference, start, odd, True)
    return Shift(rank, reference, start, calls, False)


def _first_conflict(pairs: Mapping[int, tuple[Token, Token]]) -> int | None:
    """The first pair of calls that differ, unless one line has stood for the other, foreign one so far."""
    mine = {own for own, _ in pairs.values()}
    theirs = {other for _, other in pairs.values()}
    forward: dict[Token, Token] = {}
    backward: dict[Token, Token] = {}
    for seq, (own, other) in pairs.items():
        as_before = forward.setdefault(own, other) == other and backward.setdefault(other, own) == own
        if own != other and (own in theirs or other in mine or not as_before):
            return seq
    return None


class _Same:
    """Whether two calls belong together: equal, or one always stood for the other before."""

    def __init__(self, pairs_before: set[tuple[Token, Token]]) -> None:
        self._pairs = pairs_before

    def run(self, mine: Mapping[int, Token], theirs: Mapping[int, Token], own: int, other: int) -> tuple[int, int]:
        """(calls in a row that belong together, calls that could be compared), from these numbers on."""
        length = 0
        while own + length in mine and other + length in theirs:
            a, b = mine[own + length], theirs[other + length]
            if a != b and (a, b) not in self._pairs:
                return length, length + 1
            length += 1
        return length, length


def _odd_side(seq: int, mine: Mapping[int, Token], theirs: Mapping[int, Token]) -> int | None:
    """Which side made the odd call (+1: mine), if only one of the two call sites is foreign to the other side."""
    own_is_odd = mine[seq] not in set(theirs.values())
    other_is_odd = theirs[seq] not in set(mine.values())
    if own_is_odd == other_is_odd:
        return None
    return 1 if own_is_odd else -1
