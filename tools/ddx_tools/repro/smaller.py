"""The smallest world that keeps a fault: ranks go as long as the members of a group are left in the same calls."""

from __future__ import annotations

from collections.abc import Sequence

from ddx_tools.repro.model import Recording
from ddx_tools.repro.rehearsal import Rehearsal
from ddx_tools.repro.twin import healthy_twin


def smallest(recording: Recording) -> list[int]:
    """Ranks that suffice, at least two. Empty if the recording plays to its end: then there is nothing to reproduce."""
    whole = Rehearsal(recording)
    fronts = whole.fronts()
    if not whole.stuck or not healthy_twin(recording):
        return []
    group = _group_of_fault(recording, fronts)

    def keeps(ranks: Sequence[int]) -> bool:
        return len(ranks) > 1 and Rehearsal(recording.of(ranks)).fronts().get(group) == fronts[group]

    kept = sorted(recording.programs)
    size = len(kept) // 2
    while size:
        for start in range(0, len(kept), size):
            fewer = kept[:start] + kept[start + size :]
            if keeps(fewer):
                kept = fewer
                break
        else:
            size //= 2
    return kept


def _group_of_fault(recording: Recording, fronts: dict[str, frozenset[tuple[object, ...]]]) -> str:
    """Where members are in different things, a suspect among them if there is one; the smallest such group."""

    def rank_of(name: str) -> tuple[bool, bool, int, str]:
        members = recording.groups[name]
        return len(fronts[name]) < 2, recording.suspects.isdisjoint(members), len(members), name

    return min(fronts, key=rank_of)
