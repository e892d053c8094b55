"""Finds the ranks a gradient was reduced over, and how, by comparing its projections with those of each rank's own
gradient.

A projection is linear, so the projection of a mean (or sum) over ranks is the mean (or sum) of their projections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from ddx_tools.probes.consistency.fingerprints import FingerprintStep

_FITS = 1e-2
"""The largest relative residual of the gradient after the fitted sum is subtracted: low precision rounds."""
_WHOLE = 2e-3
_FEWEST = 2


@dataclass(frozen=True)
class Reduced:
    """How a rank's gradient was reduced."""

    over: tuple[int, ...]
    """The ranks whose own gradients it combines."""
    scale: float
    """Relative to the mean over N ranks. 1: the mean; N: the sum; 1/N: divided twice."""


def reduction_at(look: FingerprintStep, rank: int, ranks: Sequence[int]) -> Reduced | None:
    """Return how the gradient of `rank` was reduced from those of `ranks`; None if no group explains it, or too little
    is known."""
    own, reduced = look.of("own_gradient"), look.of("gradient")
    names = [
        name
        for name, of_rank in reduced.items()
        if rank in of_rank
        and of_rank[rank].placements is None
        and all(other in own.get(name, {}) for other in ranks)
        and not any(one.non_finite for one in chain(own[name].values(), of_rank.values()))
    ]
    if len(names) < _FEWEST:
        return None
    vector = [reduced[name][rank].projection for name in names]
    length = _dot(vector, vector)
    best: tuple[float, Reduced] | None = None
    for over in _groups(ranks, rank):
        total = [sum(own[name][other].projection for other in over) for name in names]
        square = _dot(total, total)
        if not square or not length:
            continue
        ratio = _dot(vector, total) / square
        left = _dot(rest := [v - ratio * t for v, t in zip(vector, total, strict=True)], rest) / length
        if left < _FITS**2 and (best is None or left < best[0] / 4):
            best = left, Reduced(tuple(over), ratio * len(over))
    return best[1] if best else None


def group_size_of(scale: float, sizes: Sequence[int]) -> int | None:
    """Return the group size that a scale equals, negated if it equals the inverse of the size; None if neither."""
    for size in sizes:
        if size > 1 and abs(scale / size - 1) < _WHOLE:
            return size
        if size > 1 and abs(scale * size - 1) < _WHOLE:
            return -size
    return None


def _groups(ranks: Sequence[int], rank: int) -> list[Sequence[int]]:
    """All ranks, then the mesh groups that contain the rank (neighbours, and ranks a stride apart), and last the rank
    by itself."""
    at, count = ranks.index(rank), len(ranks)
    found: list[Sequence[int]] = [ranks]
    for size in (size for size in range(count - 1, 1, -1) if count % size == 0):
        first = at // size * size
        found += [ranks[first : first + size], ranks[at % (count // size) :: count // size]]
    return [*found, [rank]]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
