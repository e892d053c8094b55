"""Decides whether plain rules single out the culprits in the records of a hang.

It does not affect the truth, which is known; it says when "undecided" is fair. The rules:

- all ranks wait, directly or through others, for ranks that wait for none: those are the culprits;
- in the first operation that does not end, a strict minority disagrees with the others: it is the culprit;
- the culprits also wait, in a circle: they are plain if only they stay away where several others are, and if they wait
  for more ranks than they are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from ddx_evals.simulator.engine import Issued, RankRun
from ddx_evals.simulator.training.instructions import Collective, Operation, SimulatedTransfer

_DIFFER_BY_RANK = ("all_to_all", "gather", "scatter")
"""Operations whose sizes differ even between ranks that agree."""


def singled_out(culprits: Sequence[int], runs: Sequence[RankRun], *, starts_seen: bool) -> bool:
    """Whether plain rules name exactly the culprits. Without `starts_seen`, a rank is where it has enqueued."""
    guilty = set(culprits)
    places = _places(runs, starts_seen=starts_seen)
    if any(_minority(there) == guilty for there in places.values() if len(there) > 2):
        return True
    waits_for: dict[int, set[int]] = defaultdict(set)
    alone_absent = False
    for there in places.values():
        absent = _absent(there, runs, starts_seen=starts_seen)
        alone_absent |= absent == guilty and len(there) > 1
        for rank in there:
            waits_for[rank] |= absent
    if not starts_seen:
        # A rank that has enqueued as much as its peers may wait for what they enqueued before.
        waits_for = defaultdict(set, {rank: awaited for rank, awaited in waits_for.items() if awaited})
    if not waits_for or not _lead_to(guilty, waits_for):
        return False
    awaited = set().union(*(waits_for[rank] for rank in guilty)) - guilty
    return not awaited or (alone_absent and len(awaited) > len(guilty))


def _places(runs: Sequence[RankRun], *, starts_seen: bool) -> dict[tuple[object, ...], dict[int, Issued]]:
    """The places where ranks wait: each rank's first unfinished operation per group, with the others in it."""
    places: dict[tuple[object, ...], dict[int, Issued]] = defaultdict(dict)
    for run in runs:
        seen: set[int] = set()
        for issued in run.issued:
            group = issued.operation.group
            if issued.ended is not None or group.index in seen:
                continue
            seen.add(group.index)
            if starts_seen and issued.started is None:
                continue
            if isinstance(issued.operation, Collective):
                places[group.index, issued.collective_seq][run.rank] = issued
            else:
                places[group.index, "of rank", run.rank][run.rank] = issued
    return places


def _absent(there: dict[int, Issued], runs: Sequence[RankRun], *, starts_seen: bool) -> set[int]:
    """The ranks that are absent where these ranks wait."""
    issued = next(iter(there.values()))
    group = issued.operation.group
    if not isinstance(issued.operation, Collective):
        return {group.ranks[transfer.peer] for transfer in _transfers(issued.operation)}
    if starts_seen:
        return set(group.ranks) - there.keys()
    return {rank for rank in group.ranks if rank not in there and not _has_enqueued(runs[rank], issued)}


def _has_enqueued(run: RankRun, like: Issued) -> bool:
    """Whether a rank has enqueued the operation with this group and number, after the one that it waits for."""
    last = run.last_of_group.get(like.operation.group.index)
    return last is not None and last.collective_seq >= like.collective_seq


def _transfers(operation: Operation) -> Iterable[SimulatedTransfer]:
    if isinstance(operation, SimulatedTransfer):
        return (operation,)
    return () if isinstance(operation, Collective) else operation.transfers


def _minority(there: dict[int, Issued]) -> set[int]:
    """The ranks that disagree with most of those in an operation, as far as the records show."""
    shown = {rank: _shown(issued.operation) for rank, issued in there.items()}
    (most, count), *others = Counter(shown.values()).most_common(2)
    if not others or count == others[0][1]:
        return set()
    return {rank for rank, what in shown.items() if what != most}


def _shown(operation: Operation) -> str:
    if not isinstance(operation, Collective):
        return "transfer"
    if operation.name in _DIFFER_BY_RANK:
        return operation.name
    return f"{operation.name} {operation.inputs} {operation.outputs}"


def _lead_to(guilty: set[int], waits_for: dict[int, set[int]]) -> bool:
    """Whether every waiting rank waits, directly or indirectly, for the guilty ranks."""
    reached = set(guilty)
    grew = True
    while grew:
        more = {rank for rank, awaited in waits_for.items() if rank not in reached and awaited & reached}
        reached |= more
        grew = bool(more)
    return waits_for.keys() <= reached
