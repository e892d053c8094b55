"""Matches the same collective on all ranks: which rank entered last, how long its peers waited, and their clock
offsets.

All members leave an all_reduce, all_gather, reduce_scatter, all_to_all or barrier together, as soon as the last has
entered: so a rank that always leaves 3 ms after its peers has a clock 3 ms ahead. With clocks aligned this way, the
start times show which rank was late, and how much of a collective is waiting for it. An NCCL kernel that waits looks
the same as one that sends.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from statistics import median
from typing import Any

from ddx_tools.evidence.store import Store
from ddx_tools.model.grouping import gathered

_TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
_MOST_AHEAD = 20
_MOST_COMPARED = 400_000
"""How many collectives are compared, over all ranks: the first ones of each rank."""


@dataclass(frozen=True)
class Matched:
    """One collective on several ranks, on one clock."""

    op: str
    size_bytes: int | None
    group: str
    step: int | None
    start_ns: dict[int, int]
    """The start times by rank."""
    end_ns: dict[int, int]
    exposed_ns: dict[int, int]

    @property
    def last(self) -> int:
        """The rank that entered last."""
        return max(self.start_ns, key=lambda rank: self.start_ns[rank])

    @property
    def late_ns(self) -> int:
        """How much later the last rank entered than the next to last."""
        first, second = sorted(self.start_ns.values())[-1:-3:-1]
        return first - second

    def waiting_ns(self, rank: int) -> int:
        """Return how much of its exposed time a rank waits for the last rank: overlap hides the beginning of a
        collective first."""
        after_last = max(0, self.end_ns[rank] - self.start_ns[self.last])
        return max(0, self.exposed_ns[rank] - after_last)

    @property
    def transfer_ns(self) -> int:
        """How long the collective took after the last rank entered."""
        return max(self.end_ns.values()) - self.start_ns[self.last]


@dataclass
class TraceComparison:
    """The matched collectives, clock offsets and waiting shares of several ranks' traces."""

    ranks: list[int] = field(default_factory=list)
    matched: list[Matched] = field(default_factory=list)
    clock_ns: dict[int, int] = field(default_factory=dict)
    """How far each rank's clock is ahead."""
    waiting: dict[tuple[int, int | None], float] = field(default_factory=dict)
    """The share of exposed time that is waiting, by rank and step."""

    ahead: dict[int, int] = field(default_factory=dict)
    """By how much a rank's step numbers lag behind the first rank's, if each trace counts its own steps."""

    def waiting_share(self, rank: int | None, step: int | None) -> float:
        """Return which share (0 to 1) of exposed communication a rank spends waiting for other ranks.

        `step` is the rank's own step number. If that step was not compared, it is the rank's usual share. It is 0 if
        `rank` is None.
        """
        if rank is None:
            return 0.0
        return self.waiting.get((rank, self.shared_step(rank, step)), self._usual.get(rank, 0.0))

    def shared_step(self, rank: int, step: int | None) -> int | None:
        """Translate a rank's own step number into the first rank's numbering.

        Each trace may count its own steps. None (no step) stays None.
        """
        return None if step is None else step + self.ahead.get(rank, 0)

    @cached_property
    def _usual(self) -> dict[int, float]:
        of_rank = gathered((rank, share) for (rank, _), share in self.waiting.items())
        return {rank: median(shares) for rank, shares in of_rank.items()}


def comparison(store: Store) -> TraceComparison:
    """Compare the ranks' traces: match each collective across ranks and estimate the clock offsets.

    Calls match if group, operation, size, step and position within the step are equal. Calls that do not overlap in
    time on the corrected clocks are dropped.
    """
    ranks = [row["rank"] for row in store.query("SELECT DISTINCT rank FROM trace_ranks WHERE rank >= 0 ORDER BY rank")]
    found = TraceComparison(ranks, ahead=_ahead(store))
    rows: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in store.query(_NUMBERED, [_MOST_COMPARED // max(1, len(ranks))]):
        row["step"] = found.shared_step(row["rank"], row["step"])
        key = tuple(row[name] for name in ("group_name", "op", "size_bytes", "step", "number"))
        rows[key][row["rank"]] = row
    complete = [each for each in rows.values() if len(each) > 1 and len(each) == _members(each, ranks)]
    middles = [(each, median(row["end_ns"] for row in each.values())) for each in complete]
    late = gathered((rank, int(row["end_ns"] - middle)) for each, middle in middles for rank, row in each.items())
    found.clock_ns = {rank: int(median(offsets)) for rank, offsets in late.items()}
    for each in complete:
        matched = _matched(each, found.clock_ns)
        # Calls that do not overlap are different collectives: the same number in another group, or in another window.
        if max(matched.start_ns.values()) <= min(matched.end_ns.values()):
            found.matched.append(matched)
    found.waiting = _waiting(found.matched)
    return found


def _ahead(store: Store) -> dict[int, int]:
    """For traces cut at optimizer steps: the step of each rank that ends when the first rank's step does."""
    ends: dict[int, dict[int, int]] = defaultdict(dict)
    for row in store.query(
        "SELECT rank, step, end_ns FROM trace_steps JOIN trace_ranks USING (rank, source) "
        "WHERE rank >= 0 AND step IS NOT NULL AND steps_by = 'optimizer' ORDER BY rank, step"
    ):
        ends[row["rank"]][row["step"]] = row["end_ns"]
    first = next(iter(ends.values()), {})

    def apart_ns(mine: dict[int, int], shift: int) -> float:
        both = [abs(end - first[step + shift]) for step, end in mine.items() if step + shift in first]
        return median(both) if both else inf

    shifts = range(-_MOST_AHEAD, _MOST_AHEAD + 1)
    return {rank: min(shifts, key=lambda shift: apart_ns(mine, shift)) for rank, mine in ends.items()}


def _members(each: dict[int, dict[str, Any]], ranks: list[int]) -> int:
    """How many traces must hold the collective: without a group size, all."""
    sizes = {row["group_size"] for row in each.values() if row["group_size"]}
    return min(sizes) if sizes else len(ranks)


def _matched(each: dict[int, dict[str, Any]], clock_ns: dict[int, int]) -> Matched:
    first = next(iter(each.values()))
    return Matched(
        op=first["op"],
        size_bytes=first["size_bytes"],
        group=first["group_desc"] or first["group_name"] or "",
        step=first["step"],
        start_ns={rank: row["start_ns"] - clock_ns[rank] for rank, row in each.items()},
        end_ns={rank: row["end_ns"] - clock_ns[rank] for rank, row in each.items()},
        exposed_ns={rank: row["exposed_ns"] for rank, row in each.items()},
    )


def _waiting(matched: list[Matched]) -> dict[tuple[int, int | None], float]:
    waits: Counter[tuple[int, int | None]] = Counter()
    exposed: Counter[tuple[int, int | None]] = Counter()
    for each in matched:
        for rank, exposed_ns in each.exposed_ns.items():
            waits[rank, each.step] += each.waiting_ns(rank)
            exposed[rank, each.step] += exposed_ns
    return {key: waits[key] / total for key, total in exposed.items() if total > 0}


_NUMBERED = f"""
SELECT *, row_number() OVER (
    PARTITION BY rank, group_name, op, size_bytes, step ORDER BY start_ns, end_ns
) AS number FROM trace_collectives WHERE rank >= 0 AND op IN {_TOGETHER}
QUALIFY row_number() OVER (PARTITION BY rank ORDER BY start_ns) <= ? ORDER BY start_ns, rank
"""
