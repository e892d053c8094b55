"""Splits ranks by what they did, and names the deviating ones only if a clear majority did something else."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from ddx_tools.model.diagnosis import rank_list
from ddx_tools.model.grouping import gathered


@dataclass(frozen=True)
class Sides:
    """Ranks grouped by what they did, and which of them deviate from the majority."""

    groups: tuple[tuple[str, tuple[int, ...]], ...]
    """(value, ranks), the largest group first."""
    deviating: tuple[int, ...]
    """The ranks that differ from the majority; all ranks if there is no majority."""
    tie: bool

    def words(self) -> str:
        """The sides in words, deviating ranks first: `broadcast (rank 2) against all_reduce (ranks 0-1, 3)`."""
        parts = [f"{value} ({rank_list(list(ranks))})" for value, ranks in reversed(self.groups)]
        return " against ".join(parts)


def part(values: Mapping[int, str]) -> Sides:
    """Split ranks by what they did, and determine which of them deviate from the majority.

    `values` maps each rank to what it did, such as an operation's name. A majority is more than half of all ranks;
    without one, no rank is singled out.
    """
    by_value = gathered((value, rank) for rank, value in sorted(values.items()))
    groups = sorted(by_value.items(), key=lambda item: (-len(item[1]), item[1]))
    majority = set(groups[0][1])
    tie = 2 * len(majority) <= len(values)
    deviating = sorted(values if tie else values.keys() - majority)
    return Sides(tuple((value, tuple(ranks)) for value, ranks in groups), tuple(deviating), tie)


def missing_from_group(ranks: Set[int], world: Set[int]) -> set[int]:
    """The other members of the smallest device-mesh group that contains `ranks`; empty if several groups fit.

    The members of a mesh group are equally far apart. Most members of the group must be among `ranks`.
    """
    size, first = len(world), min(ranks)
    fitting: list[set[int]] = []
    for apart in (each for each in range(1, size) if size % each == 0):
        for members in (each for each in range(len(ranks) + 1, size) if size % (apart * each) == 0):
            start = first // (apart * members) * apart * members + first % apart
            group = set(range(start, start + apart * members, apart))
            if ranks < group and 2 * len(ranks) > members and group - ranks not in fitting:
                fitting.append(group - ranks)
    fewest_missing = min(map(len, fitting), default=0)
    best = [each for each in fitting if len(each) == fewest_missing]
    return best[0] if len(best) == 1 and best[0] <= world else set()
