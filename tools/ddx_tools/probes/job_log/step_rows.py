"""Of the thousands of lines in which a process tells its progress, the few that say it all.

Kept of each kind of line: the first, the last, the first that was not finite, and points in between that show how long
steps take. So the rows of a log stay few however long it trained.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from dataclasses import asdict, dataclass, field
from typing import Any

from ddx_tools.parsers.logs.log_lines import LogLine
from ddx_tools.parsers.logs.rank_values import RankValue
from ddx_tools.parsers.logs.step_lines import StepFacts

_SHAPES_LIMIT = 32
_BARS_LIMIT = 8
_POINTS = 64


@dataclass
class _Kind:
    """Lines of one shape, in order."""

    first: tuple[LogLine, StepFacts]
    last: tuple[LogLine, StepFacts]
    count: int = 0
    odd: dict[str, tuple[LogLine, StepFacts]] = field(default_factory=dict)
    """The first line whose loss or norm is not finite."""
    finite: dict[str, int] = field(default_factory=dict)
    """The last line whose loss or norm is finite."""
    points: list[list[float]] = field(default_factory=list)
    """(step, seconds that it took)."""
    stride: int = 1
    held: list[list[float]] = field(default_factory=list)
    """(step, bytes allocated)."""
    held_stride: int = 1
    shares: list[float] = field(default_factory=list)
    """Of the iterations' time, what went into waiting for data: the last of them."""

    inputs: list[list[float | None]] = field(default_factory=list)
    """(step, seconds that its data took, seconds that all of it took, if the line says that): the last of them."""

    def take(self, line: LogLine, facts: StepFacts) -> None:
        self.last = (line, facts)
        self.count += 1
        for name, value in (("loss", facts.loss), ("grad_norm", facts.grad_norm)):
            if value is None:
                continue
            if math.isfinite(value):
                self.finite[name] = line.number
            else:
                self.odd.setdefault(name, (line, facts))
        if facts.data_share is not None:
            self.shares = [*self.shares[-_POINTS:], facts.data_share]
        if facts.input_s is not None and facts.step is not None:
            self.inputs = [*self.inputs[-_POINTS:], [facts.step, facts.input_s, _whole_s(facts)]]
        if facts.allocated_bytes is not None and facts.step is not None and self.count % self.held_stride == 0:
            self.held.append([facts.step, facts.allocated_bytes])
            if len(self.held) >= _POINTS:
                del self.held[::2]
                self.held_stride *= 2
        if facts.step_s is not None and facts.step is not None and self.count % self.stride == 0:
            self.points.append([facts.step, facts.step_s])
            if len(self.points) >= _POINTS:
                del self.points[::2]
                self.stride *= 2


class StepRows:
    """The progress of one stream of lines."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[int | None, str], list[_Kind]] = {}

    def take(self, line: LogLine, facts: StepFacts) -> None:
        """Another line; memory is bounded by the kinds of lines."""
        key = facts.rank, facts.shape
        known = self._kinds.get(key)
        if known is None:
            if len(self._kinds) >= _SHAPES_LIMIT:
                return
            known = self._kinds[key] = []
        kind = _continued(known, facts)
        if kind is None:
            kind = _Kind((line, facts), (line, facts))
            known.append(kind)
        kind.take(line, facts)

    def rows(self) -> list[tuple[LogLine, dict[str, Any]]]:
        """The lines that are kept, each with its `details`."""
        found: dict[int, tuple[LogLine, dict[str, Any]]] = {}
        for kinds in self._kinds.values():
            for kind in kinds:
                for what, (line, facts) in (("first", kind.first), *_odd(kind), ("last", kind.last)):
                    found[id(facts)] = (line, _details(facts, what, kind))
        return sorted(found.values(), key=lambda row: row[0].number)


def _continued(kinds: list[_Kind], facts: StepFacts) -> _Kind | None:
    """The lines that one continues. Bars of several ranks or runs stand mixed in one stream: a bar never goes back."""
    if facts.bar is None or not kinds:
        return kinds[0] if kinds else None
    same = [kind for kind in kinds if kind.last[1].total == facts.total]
    behind = [kind for kind in same if (kind.last[1].step or 0) <= (facts.step or 0)]
    if behind:
        return max(behind, key=lambda kind: kind.last[1].step or 0)
    return kinds[-1] if len(kinds) >= _BARS_LIMIT else None


def _whole_s(facts: StepFacts) -> float | None:
    """Seconds that a step takes, of a line that says how long its data take."""
    if facts.step_s is None and facts.input_s and facts.data_share:
        return facts.input_s / facts.data_share
    return facts.step_s


def _odd(kind: _Kind) -> list[tuple[str, tuple[LogLine, StepFacts]]]:
    return [(f"non_finite_{name}", at) for name, at in kind.odd.items()]


def _details(facts: StepFacts, what: str, kind: _Kind) -> dict[str, Any]:
    odd = {
        name: str(value)
        for name, value in (("loss", facts.loss), ("grad_norm", facts.grad_norm))
        if value is not None and not math.isfinite(value)
    }
    return {
        **{name: getattr(facts, name) for name in ("step", "batch", "total", "epoch", "shape", "bar", "elapsed_s")},
        "loss": facts.loss if "loss" not in odd else None,
        "grad_norm": facts.grad_norm if "grad_norm" not in odd else None,
        "non_finite": odd or None,
        "stated_rank": facts.rank,
        "own_work": facts.own_work or None,
        "what": what,
        "lines": kind.count,
        "finite_again": [name for name, (at, _) in kind.odd.items() if kind.finite.get(name, 0) > at.number] or None,
        "held": kind.held if what == "last" and len(kind.held) > 1 else None,
        "shares": kind.shares if what == "last" and kind.shares else None,
        "inputs": kind.inputs if what == "last" and len(kind.inputs) > 1 else None,
        "points": kind.points if what == "last" and len(kind.points) > 1 else None,
    }


# --- of the values that ranks print for comparison, the few that say it all: the first, and where NaN begins and ends

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
