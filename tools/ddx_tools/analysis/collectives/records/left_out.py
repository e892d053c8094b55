"""Whether a rank that called something else than its peers left their call out, by the rounds before.

A program makes its collectives in rounds. If in all earlier rounds the rank's call came a fixed number of calls behind
the one that its peers are in now, and never in its place, the order is the same on all ranks: the odd one goes on with
what comes next, without the calls between. What it has called ahead since has to go on like that, too: where it is in
step with its peers again, it made two calls in another order.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

from ddx_tools.analysis.collectives.records.comparable import elements
from ddx_tools.analysis.collectives.records.records import Entry, Group, Records

_PAST = 400
"""Collectives before the disagreement that are looked at."""
_AHEAD = 40
"""Collectives called after it that are looked at."""
_ENOUGH = 2
"""Rounds that must agree: one alone is no habit."""

_Call = tuple[str, str | None, str | None]


def left_out_calls(records: Records, group: Group, odd: Collection[Entry], usual: Entry) -> list[Entry]:
    """The calls that `odd` went around when they came to their own, as a peer made them the last time; often none.

    `odd` and `usual` are what some ranks and the others recorded under the first number at which they differ.
    """
    own, *others = {_call(entry) for entry in odd}
    if others:
        return []
    wanted = "rank = ? AND NOT is_p2p AND op <> 'coalesced' AND seq BETWEEN ? AND ?"
    past = records.entries(group, wanted, [usual.rank, usual.seq - _PAST, usual.seq - 1])
    calls = [_call(entry) for entry in past]
    if len(past) != len({entry.seq for entry in past}) or not past or past[-1].seq != usual.seq - 1:
        return []
    theirs, before = _call(usual), calls[-1]
    if (before, own) in pairwise(calls):
        return []  # it has come here this way before
    rounds = [place for place in range(1, len(calls)) if (calls[place - 1], calls[place]) == (before, theirs)]
    lengths = {_until(calls, place, own, theirs) for place in rounds}
    if len(rounds) < _ENOUGH or len(lengths) != 1 or None in lengths:
        return []
    length = lengths.pop() or 0
    if not _goes_on_without(records, group, next(iter(odd)).rank, usual, length):
        return []
    return past[rounds[-1] : rounds[-1] + length]


def _goes_on_without(records: Records, group: Group, odd: int, usual: Entry, length: int) -> bool:
    """Whether all that a rank called ahead stands `length` numbers before the same call of a peer."""
    ahead = "rank IN (?, ?) AND NOT is_p2p AND op <> 'coalesced' AND seq BETWEEN ? AND ?"
    found = records.entries(group, ahead, [odd, usual.rank, usual.seq, usual.seq + _AHEAD])
    calls = {(entry.rank, entry.seq): _call(entry) for entry in found}
    own = {seq: call for (rank, seq), call in calls.items() if rank == odd}
    return all(calls.get((usual.rank, seq + length), call) == call for seq, call in own.items())


def _call(entry: Entry) -> _Call:
    """What makes two calls of one program the same call."""
    return entry.op, elements(entry.input_sizes) or elements(entry.output_sizes), entry.path


def _until(calls: list[_Call], start: int, own: _Call, theirs: _Call) -> int | None:
    """How many calls lie between one of the peers' and the next of the rank's own; None if theirs comes again first."""
    for place in range(start + 1, len(calls)):
        if calls[place] == own:
            return place - start
        if calls[place] == theirs:
            return None
    return None
