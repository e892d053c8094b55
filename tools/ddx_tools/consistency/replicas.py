"""Which ranks have to hold the same: by the placements of a DTensor, by DDP's group, else by how they began."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

from ddx_tools.consistency.prints import Look, Print

_ALIKE = 1e-5
"""Gradients are compared as numbers: sums in another order differ in their last digits."""
_EXACT = ("parameter", "buffer", "optimizer")


class Replicas:
    """The sets of ranks that share a tensor, as the first look of an attempt tells."""

    def __init__(self, first: Look) -> None:
        self.wrapped = _wrapped(first)
        self.buffers_kept = _buffers_kept(first)
        self._began: dict[str, list[list[int]]] = {
            name: alike("parameter", of_rank) for name, of_rank in first.of("parameter").items()
        }

    def sets(self, what: str, name: str, of_rank: Mapping[int, Print]) -> list[list[int]]:
        """Those that must agree on a tensor, two ranks at least each."""
        if any(each.placements is not None for each in of_rank.values()):
            found = list(_by_coordinate(of_rank))
        elif self.wrapped:
            found = [[rank for rank in self.wrapped if rank in of_rank]]
        else:
            began = self._began.get(name.partition("/")[0] if what == "optimizer" else name)
            everybody = [sorted(of_rank)] if any(len(sets) == 1 for sets in self._began.values()) else []
            found = everybody if began is None else began
        return [ranks for each in found if len(ranks := [rank for rank in each if rank in of_rank]) > 1]

    def everybody(self) -> list[list[int]]:
        """The sets in which ranks hold all plain parameters alike: what data parallelism reduces over."""
        if self.wrapped:
            return [self.wrapped]
        return max(self._began.values(), key=len, default=[])


def alike(what: str, of_rank: Mapping[int, Print]) -> list[list[int]]:
    """The ranks whose prints agree, the largest set first."""
    sets: list[list[int]] = []
    for rank, one in sorted(of_rank.items()):
        same = next((each for each in sets if _agree(what, of_rank[each[0]], one)), None)
        if same is None:
            sets.append([rank])
        else:
            same.append(rank)
    return sorted(sets, key=len, reverse=True)


def _agree(what: str, one: Print, other: Print) -> bool:
    if one.hash == other.hash:
        return True
    if what in _EXACT or one.non_finite != other.non_finite:
        return False
    scale = max(one.norm, other.norm)
    return all(
        math.isclose(a, b, abs_tol=_ALIKE * scale)
        for a, b in ((one.norm, other.norm), (one.projection, other.projection))
    )


def _by_coordinate(of_rank: Mapping[int, Print]) -> Sequence[list[int]]:
    """Ranks that stand at one place of the dimensions along which the tensor is cut or not yet summed."""
    sets: dict[Hashable, list[int]] = defaultdict(list)
    for rank, one in sorted(of_rank.items()):
        coordinate = one.facts.get("coordinate") or []
        cut = [at for at, how in zip(coordinate, one.placements or (), strict=False) if not how.startswith("R")]
        sets[one.placements, one.facts.get("mesh_id"), tuple(cut)].append(rank)
    return list(sets.values())


def _wrapped(look: Look) -> list[int]:
    for of_rank in look.of("wrapper").values():
        for one in of_rank.values():
            if isinstance(ranks := one.facts.get("ranks"), list):
                return sorted(ranks)
    return []


def _buffers_kept(look: Look) -> bool:
    """DDP gives rank 0's buffers to all before each forward: what they become in it may differ."""
    wrappers = [one for of_rank in look.of("wrapper").values() for one in of_rank.values()]
    return any(one.facts.get("broadcast_buffers") for one in wrappers)
