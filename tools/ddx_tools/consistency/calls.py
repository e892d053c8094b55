"""From which lines of the program forward, reductions and the step of the optimizer were called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ddx_tools.consistency.prints import Look
from ddx_tools.model import Location

_MOST_PLACES = 3


class Calls:
    """What the looks of one attempt tell, by rank: of each call as of the first look that tells it."""

    def __init__(self, seen: Sequence[Look]) -> None:
        self._of_rank: dict[int, dict[str, Any]] = {}
        for look in reversed(seen):
            for rank, one in look.of("calls").get("", {}).items():
                known = self._of_rank.setdefault(rank, {})
                known.update({name: value for name, value in one.facts.items() if value != []})

    def places(self, ranks: Iterable[int], *which: str) -> list[Location]:
        """Where some ranks called the first of these that is known: `reductions`, `forward`, `step_at`."""
        mine = [self._of_rank[rank] for rank in ranks if rank in self._of_rank]
        for name in which:
            found = [
                place
                for facts in mine
                for place in (
                    [each["at"] for each in facts.get(name, ())] if name == "reductions" else [facts.get(name)]
                )
                if place
            ]
            if found:
                unique = list(dict.fromkeys(map(tuple, found)))[:_MOST_PLACES]
                return [Location(file=file, line=line, function=function) for file, line, function in unique]
        return []

    def left_out(self, ranks: Iterable[int]) -> str | None:
        """Why nothing reduced the gradients, where the wrapper itself tells."""
        mine = [self._of_rank.get(rank, {}) for rank in ranks]
        if any(facts.get("past_wrapper") is True for facts in mine):
            return "past_wrapper"
        if any(facts.get("sync") is False for facts in mine):
            return "no_sync"
        return None
