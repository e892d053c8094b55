"""Of the values that ranks print for comparison, the few that say it all: the first of each rank and kind, and NaN."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from ddx_tools.formats.log_lines import LogLine
from ddx_tools.formats.rank_values import RankValue

_STEPS = 3
_MOST = 8_192


class ValueRows:
    """The values of one log."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, object, str], int] = defaultdict(int)
        self._rows: list[tuple[LogLine, RankValue, list[int] | None]] = []
        self._behind: dict[str, list[int]] = {}

    def step(self, line: LogLine, number: int) -> None:
        """A line of the stream names a step: what comes behind it and names none is of that one or the next."""
        self._behind[line.stream] = [number, 0]

    def take(self, line: LogLine, values: list[RankValue]) -> None:
        """The values of another line; memory is bounded by ranks and kinds."""
        behind = self._behind.get(line.stream)
        for value in values:
            is_nan = value.value.lower() == "nan"
            key = line.stream, _whose(line, value), f"{value.what} nan" if is_nan else value.what
            if self._seen[key] < (1 if is_nan else _STEPS) and len(self._rows) < _MOST:
                self._seen[key] += 1
                self._rows.append((line, value, list(behind) if behind and value.step is None else None))
        if behind:
            behind[1] += 1

    def rows(self) -> list[tuple[LogLine, dict[str, Any]]]:
        """The lines that are kept, each with its `details`."""
        return [
            (
                line,
                {
                    "what": value.what,
                    "value": value.value,
                    "step": value.step,
                    "behind": behind,
                    "label": value.label,
                    "stated_rank": value.rank,
                },
            )
            for line, value, behind in self._rows
        ]


def _whose(line: LogLine, value: RankValue) -> object:
    rank = line.rank if value.rank is None else value.rank
    return rank if rank is not None else ("label", value.label)
