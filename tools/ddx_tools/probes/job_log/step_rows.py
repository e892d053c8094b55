"""Selects, from thousands of progress lines of a process, the few that carry the information.

For each kind of line it keeps the first, the last, the first non-finite one, and points in between that show how long
steps take. So a log yields few rows, however long the training ran.
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
    """The lines of one shape, in order."""

    first: tuple[LogLine, StepFacts]
    last: tuple[LogLine, StepFacts]
    count: int = 0
    odd: dict[str, tuple[LogLine, StepFacts]] = field(default_factory=dict)
    """The first line whose loss or norm is not finite, by name of the value."""
    finite: dict[str, int] = field(default_factory=dict)
    """The number of the last line whose loss or norm is finite, by name of the value."""
    points: list[list[float]] = field(default_factory=list)
    """(step, seconds that it took) at some steps."""
    stride: int = 1
    held: list[list[float]] = field(default_factory=list)
    """(step, bytes allocated) at some steps."""
    held_stride: int = 1
    shares: list[float] = field(default_factory=list)
    """The share of iteration time spent waiting for data, in the last lines."""

    inputs: list[list[float | None]] = field(default_factory=list)
    """(step, seconds for its data, seconds for the whole step or None), in the last lines."""

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
    """Collects the progress lines of one stream."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[int | None, str], list[_Kind]] = {}

    def take(self, line: LogLine, facts: StepFacts) -> None:
        """Add another line; memory is bounded by the number of kinds of lines."""
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
    """The kind that a line continues. Progress bars of several ranks or runs may be mixed in one stream; a bar never
    goes back."""
    if facts.bar is None or not kinds:
        return kinds[0] if kinds else None
    same = [kind for kind in kinds if kind.last[1].total == facts.total]
    behind = [kind for kind in same if (kind.last[1].step or 0) <= (facts.step or 0)]
    if behind:
        return max(behind, key=lambda kind: kind.last[1].step or 0)
    return kinds[-1] if len(kinds) >= _BARS_LIMIT else None


def _whole_s(facts: StepFacts) -> float | None:
    """The seconds of a whole step, for a line that says how long its data takes."""
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


# --- of the values that ranks print for comparison, the few that matter: the first, and where NaN begins and ends

_STEPS = 3
_MOST = 8_192
_LAST = 2
"""How many of a rank's last values are kept for kinds that drift: other ranks may lack a line for the last step."""
_DRIFTING = ("parameters", "buffers")
_FOLLOWED = "own_grad_norm"
"""The only kind whose NaN shows which rank had it before a reduction spread it to all."""


@dataclass(frozen=True)
class _Row:
    line: LogLine
    value: RankValue
    behind: list[int] | None

    @property
    def step(self) -> int | None:
        """Return the value's own step, else the step named by the last progress line above it.

        None if neither is known.
        """
        return self.value.step if self.value.step is not None else self.behind[0] if self.behind else None

    @property
    def is_nan(self) -> bool:
        return self.value.value.lower() == "nan"

    def details(self) -> dict[str, Any]:
        told = asdict(self.value)
        return {**told, "stated_rank": told.pop("rank"), "behind": self.behind}


@dataclass
class _Followed:
    """The values of one rank until the end of the log."""

    last: _Row
    last_finite: _Row | None = None
    bad_since: _Row | None = None
    """The first NaN after which no later step was finite."""

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
    """Collects the compared values of one log."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, object, str], int] = defaultdict(int)
        self._rows: list[_Row] = []
        self._followed: dict[tuple[str, object], _Followed] = {}
        self._last: dict[tuple[str, object, str], deque[_Row]] = {}
        self._behind: dict[tuple[str, int | None], list[int]] = {}

    def step(self, line: LogLine, number: int, rank: int | None) -> None:
        """Note that a line names a step: following values without a step belong to that step or the next.

        `rank`: the rank that the line names; if neither the line nor the stream names one, it may be any rank of the
        stream.
        """
        self._behind[line.stream, line.rank if rank is None else rank] = [number, 0]

    def leave_out(self) -> None:
        """Note that progress lines were skipped: the step of the following values is unknown."""
        self._behind.clear()

    def take(self, line: LogLine, values: list[RankValue]) -> None:
        """Add the values of another line; memory is bounded by the number of ranks and kinds."""
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
