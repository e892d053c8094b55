"""One call of the program that ranks make in different groups: each waits for peers that wait for it in another one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from ddx_tools.analysis.collectives import raising
from ddx_tools.analysis.collectives.records.records import Entry, Records
from ddx_tools.analysis.collectives.records.shown import kind_of, shown, where
from ddx_tools.analysis.collectives.records.waits import Recorded
from ddx_tools.analysis.collectives.sides import part
from ddx_tools.model import Finding, Severity, rank_list

_DEFAULT = "default_pg"


def group_mismatches(records: Records, holds: Sequence[Recorded]) -> list[Finding]:
    """One finding for each two operations that come from one call path and hold each other up."""
    return [
        finding
        for one, other in combinations([hold for hold in holds if hold.transfer is None and hold.fronts], 2)
        if one.op == other.op and (finding := _mismatch(records, one, other)) is not None
    ]


def _mismatch(records: Records, one: Recorded, other: Recorded) -> Finding | None:
    mutual = set(one.blockers) & other.waiting.keys() and set(other.blockers) & one.waiting.keys()
    if one.group.id == other.group.id or not mutual:
        return None
    entries = {entry.rank: entry for entry in (*one.entries(), *other.entries())}
    # Frames are not asked of every rank.
    sites = [{entry.path: entry for entry in hold.entries() if entry.path is not None} for hold in (one, other)]
    if not all(sites) or sites[0].keys() != sites[1].keys() or len(sites[0]) != 1:
        return None
    used = _groups_used(records, next(iter(sites[0].values())))
    if any(len(groups) > 1 for groups, _ in used.values()):
        return None  # The call serves several groups in turn: these ranks are in different turns of it.
    kinds = {rank: kind_of(records.groups[group]) for rank, ((group,), _) in used.items()}
    if kind_of(one.group) == kind_of(other.group):
        kinds = {rank: records.groups[group].label for rank, ((group,), _) in used.items()}
    sides = part({rank: kind for rank, kind in kinds.items() if rank in records.ranks})
    odd = [rank for rank in sides.deviating if rank in entries]
    first, second = sorted((one, other), key=lambda hold: -len(set(odd) & hold.waiting.keys()))
    ordered = [entries[rank] for hold in (first, second) for rank in sorted(hold.waiting) if rank in entries]
    tie = sides.tie or not odd
    # In its first turn a loop over groups has used one on each rank, too: who left a turn out is in another group. Such
    # a loop has no business with the group of all, which a call has that is given none.
    kinds_of_both = {kind_of(one.group), kind_of(other.group)}
    may_be_loop = _DEFAULT not in kinds_of_both and all(calls == 1 for _, calls in used.values())
    place = ordered[0].location()
    return raising.finding(
        "collective.group_mismatch",
        Severity.FAILURE,
        entries if tie else odd,
        f"{one.op} at {place.short() if place else 'one call path'} is called in different groups: "
        f"{rank_list(sorted(first.waiting))} in {first.group.label}, {rank_list(sorted(second.waiting))} in "
        f"{second.group.label}. Each side is a member of both and waits for the other.",
        where(first.group, None, one.op),
        shown(ordered, ordered if tie else [entries[rank] for rank in odd]),
        groups={first.group.label: sorted(first.waiting), second.group.label: sorted(second.waiting)},
        minority=not tie,
        tie=tie,
        may_be_loop=may_be_loop or None,
    )


def _groups_used(records: Records, entry: Entry) -> dict[int, tuple[list[int], int]]:
    """The groups in which each rank recorded calls of an operation from one call path, and how many calls."""
    rows = records.query(
        "SELECT rank, list(DISTINCT group_id) AS groups, count(*) AS calls FROM recorded "
        "WHERE path = ? AND op = ? AND NOT is_p2p GROUP BY rank",
        [entry.path, entry.op],
    )
    return {row["rank"]: (row["groups"], row["calls"]) for row in rows}
