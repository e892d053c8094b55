"""A grid of ranks: dimensions with sizes, the last one varying fastest, as `init_device_mesh` numbers them.

rank = Σ coordinate × stride, where the stride of a dimension is the product of the sizes behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod


@dataclass(frozen=True)
class Grid:
    """Names and sizes of the dimensions, the outermost first."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @cached_property
    def world_size(self) -> int:
        """How many ranks it has."""
        return prod(self.sizes)

    @cached_property
    def strides(self) -> dict[str, int]:
        """How far apart the ranks are that are neighbours in a dimension."""
        return {name: prod(self.sizes[place + 1 :]) for place, name in enumerate(self.names)}

    def size(self, name: str) -> int:
        """Size of a dimension."""
        return self.sizes[self.names.index(name)]

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank stands. Raises ValueError for a rank outside of the grid."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is outside of a mesh of {self.world_size}")
        return {name: rank // self.strides[name] % self.size(name) for name in self.names}

    def members(self, rank: int, dims: Iterable[str]) -> list[int]:
        """The ranks that differ from this one in these dimensions only, in the order of the group."""
        varied = [name for name in self.names if name in set(dims)]
        base = rank - sum(self.coordinates(rank)[name] * self.strides[name] for name in varied)
        return [base + offset for offset in self._offsets(varied)]

    def groups(self, dims: Iterable[str]) -> Iterator[list[int]]:
        """All groups of ranks that differ in these dimensions only, by their first rank."""
        varied = [name for name in self.names if name in set(dims)]
        fixed = [name for name in self.names if name not in varied]
        offsets = self._offsets(varied)
        for base in self._offsets(fixed):
            yield [base + offset for offset in offsets]

    def _offsets(self, names: Sequence[str]) -> list[int]:
        steps = [range(0, self.size(name) * self.strides[name], self.strides[name]) for name in names]
        return [sum(step) for step in product(*steps)]
