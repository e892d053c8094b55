"""Of the values that ranks print for comparison, the few that say it all: the first steps of each rank and kind."""

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
        self._rows: list[tuple[LogLine, RankValue]] = []

    def take(self, line: LogLine, values: list[RankValue]) -> None:
        """The values of another line; memory is bounded by ranks and kinds."""
        for value in values:
            key = line.stream, _whose(line, value), value.what
            if self._seen[key] < _STEPS and len(self._rows) < _MOST:
                self._seen[key] += 1
                self._rows.append((line, value))

    def rows(self) -> list[tuple[LogLine, dict[str, Any]]]:
        """The lines that are kept, each with its `details`."""
        return [
            (
                line,
                {
                    "what": value.what,
                    "value": value.value,
                    "step": value.step,
                    "label": value.label,
                    "stated_rank": value.rank,
                },
            )
            for line, value in self._rows
        ]


def _whose(line: LogLine, value: RankValue) -> object:
    rank = line.rank if value.rank is None else value.rank
    return rank if rank is not None else ("label", value.label)
