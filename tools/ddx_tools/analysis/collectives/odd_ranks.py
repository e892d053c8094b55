"""Which ranks deviate: told only where a clear majority stands against them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddx_tools.model.diagnosis import rank_list
from ddx_tools.model.grouping import gathered


@dataclass(frozen=True)
class Sides:
    """Ranks parted by what they did."""

    groups: tuple[tuple[str, tuple[int, ...]], ...]
    """(value, ranks), the largest group first."""
    deviating: tuple[int, ...]
    """The ranks against whom a majority stands; all ranks where there is none."""
    tie: bool

    def words(self) -> str:
        """`broadcast (rank 2) against all_reduce (ranks 0-1, 3)`, the deviating first."""
        parts = [f"{value} ({rank_list(list(ranks))})" for value, ranks in reversed(self.groups)]
        return " against ".join(parts)


def part(values: Mapping[int, str]) -> Sides:
    """Part ranks by value. A majority is more than half of all of them; without one nobody is singled out."""
    by_value = gathered((value, rank) for rank, value in sorted(values.items()))
    groups = sorted(by_value.items(), key=lambda item: (-len(item[1]), item[1]))
    majority = set(groups[0][1])
    tie = 2 * len(majority) <= len(values)
    deviating = sorted(values if tie else values.keys() - majority)
    return Sides(tuple((value, tuple(ranks)) for value, ranks in groups), tuple(deviating), tie)
