"""Of the values that ranks print for comparison, the few that say it all: the first, and where NaN begins and ends."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import asdict, dataclass
from typing import Any

from ddx_tools.parsers.logs.log_lines import LogLine
from ddx_tools.parsers.logs.rank_values import RankValue

_STEPS = 3
_MOST = 8_192
_LAST = 2
"""Values of a rank at the end of a log that are kept of what drifts: of the last step others may have no line yet."""
_DRIFTING = ("parameters", "buffers")
_FOLLOWED = "own_grad_norm"
"""The one kind that may be NaN, and tells whose it was before a reduction gave it to everybody."""


@dataclass(frozen=True)
class _Row:
    line: LogLine
    value: RankValue
    behind: list[int] | None

    @property
    def step(self) -> int | None:
        """The step, or the last one that was named before."""
        return self.value.step if self.value.step is not None else self.behind[0] if self.behind else None

    @property
    def is_nan(self) -> bool:
        return self.value.value.lower() == "nan"

    def details(self) -> dict[str, Any]:
        told = asdict(self.value)
        return {**told, "stated_rank": told.pop("rank"), "behind": self.behind}


@dataclass
class _Followed:
    """The values of one rank to the end of the log."""

    last: _Row
    last_finite: _Row | None = None
    bad_since: _Row | None = None
    """The first NaN behind which no later step was finite."""

    def take(self, row: _Row) -> None:
        self.last = row
        if row.is_nan:
            self.bad_since = self.bad_since or row
            return
        self.last_finite = row
        if self.bad_since and (row.step or 0) > (self.bad_since.step or 0):
            self.bad_since = None

    def rows(self) -> list[_Row]:
        return [row for row in (self.last_finite, self.bad_since, self.last) if row]


class ValueRows:
    """The values of one log."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, object, str], int] = defaultdict(int)
        self._rows: list[_Row] = []
        self._followed: dict[tuple[str, object], _Followed] = {}
        self._last: dict[tuple[str, object, str], deque[_Row]] = {}
        self._behind: dict[tuple[str, int | None], list[int]] = {}

    def step(self, line: LogLine, number: int, rank: int | None) -> None:
        """A line names a step: what its rank says behind it without a step is of that one or the next.

        `rank`: that its words name; if neither they nor the stream tell, it is anybody's of the stream.
        """
        self._behind[line.stream, line.rank if rank is None else rank] = [number, 0]

    def leave_out(self) -> None:
        """Lines of progress were not looked at: which step what follows is of, nobody knows."""
        self._behind.clear()

    def take(self, line: LogLine, values: list[RankValue]) -> None:
        """The values of another line; memory is bounded by ranks and kinds."""
        counts = []
        for value in values:
            rank = line.rank if value.rank is None else value.rank
            behind = self._behind.get((line.stream, rank)) or self._behind.get((line.stream, None))
            counts += [behind] if behind else []
            row = _Row(line, value, list(behind) if behind and value.step is None else None)
            key = line.stream, _whose(line, value), value.what
            if value.what == _FOLLOWED and (key[:2] in self._followed or len(self._followed) < _MOST):
                self._followed.setdefault(key[:2], _Followed(row)).take(row)
            if self._seen[key] < _STEPS and len(self._rows) < _MOST:
                self._seen[key] += 1
                self._rows.append(row)
            elif value.what in _DRIFTING and (key in self._last or len(self._last) < _MOST):
                self._last.setdefault(key, deque(maxlen=_LAST)).append(row)
        if counts:
            counts[0][1] += 1

    def rows(self) -> list[tuple[LogLine, dict[str, Any]]]:
        """The lines that are kept, each with its `details`."""
        ends = [row for followed in self._followed.values() for row in followed.rows()]
        ends += [row for last in self._last.values() for row in last]
        return [(row.line, row.details()) for row in {id(row): row for row in (*self._rows, *ends)}.values()]


def _whose(line: LogLine, value: RankValue) -> object:
    rank = line.rank if value.rank is None else value.rank
    return rank if rank is not None else ("label", value.label)
