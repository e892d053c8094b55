"""What other groups of the same kind did under the same sequence number, since they run the same program.

All tensor-parallel groups of a stage make the same calls in the same order. If the members of one group diverge at a
number and no side has a majority, the other groups' calls under that number show which side followed the program.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

from ddx_tools.analysis.collectives.odd_ranks import Sides
from ddx_tools.analysis.collectives.records.comparable import elements
from ddx_tools.analysis.collectives.records.quotes import kind_of
from ddx_tools.analysis.collectives.records.records import Entry, Group, Records

_PAST = 12
"""How many calls before the number are compared."""
_ENOUGH = 3
"""How many of these must be known in both groups, and be the same."""
_MOST_GROUPS = 16


def decided_by_siblings(
    records: Records, group: Group, entries: Mapping[int, Entry], sides: Sides, value: Callable[[Entry], str]
) -> Sides:
    """Break a tie between ranks that made different calls by what sibling groups called there.

    `entries` are the members' calls under one sequence number, and `value` is the property in which they differ. Ranks
    deviate if their value differs from that of all sibling groups; if the siblings disagree, `sides` is unchanged.
    """
    if not sides.tie:
        return sides
    seq = next(iter(entries.values())).seq
    said = {value(each) for each in _calls_of_siblings(records, group, seq)}
    usual = [side for side in sides.groups if said == {side[0]}]
    if not usual:
        return sides
    others = tuple(side for side in sides.groups if side not in usual)
    odd = tuple(sorted(rank for _, ranks in others for rank in ranks))
    return replace(sides, groups=(*usual, *others), deviating=odd, tie=False)


def _calls_of_siblings(records: Records, group: Group, seq: int) -> list[Entry]:
    """What members of sibling groups with the same earlier calls called under a number."""
    alike = [each for each in records.groups.values() if each.id != group.id and kind_of(each) == kind_of(group)]
    sizes_fit = [each for each in alike if each.members and group.members and len(each.members) == len(group.members)]
    way = _way(records, group, seq)
    found = []
    for each in sizes_fit[:_MOST_GROUPS]:
        theirs = _way(records, each, seq)
        known = way.keys() & theirs.keys()
        if len(known) >= _ENOUGH and all(way[number] == theirs[number] for number in known):
            found += records.entries(each, "NOT is_p2p AND op <> 'coalesced' AND seq = ?", [seq])
    return found


def _way(records: Records, group: Group, seq: int) -> dict[int, Hashable]:
    """For each number before `seq`, the call that all members with a record of it made; omitted where they differ."""
    calls: dict[int, set[Hashable]] = {}
    wanted = "NOT is_p2p AND op <> 'coalesced' AND seq BETWEEN ? AND ?"
    for entry in records.entries(group, wanted, [seq - _PAST, seq - 1]):
        calls.setdefault(entry.seq, set()).add((entry.op, elements(entry.input_sizes), entry.path))
    return {number: next(iter(made)) for number, made in calls.items() if len(made) == 1}
