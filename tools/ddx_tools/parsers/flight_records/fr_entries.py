"""Reads the entries of a flight record into columns.

Values that entries share (the call with its sizes and types, the call path, the group) are kept once and referred to by
number: a dump of 2,000 entries has a few dozen of each.
"""

from __future__ import annotations

import marshal
import math
from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat, starmap
from operator import itemgetter
from typing import Any, TypeVar

from ddx_tools.knowledge.recorded_calls import (
    GroupName,
    RecordedCall,
    RecordedProgress,
    Room,
    call_of,
    group_of,
    integer,
    progress_of,
    text,
)
from ddx_tools.model.errors import UnreadableInput

_MAX_FRAMES = 200
_MAX_ITEMS = 8_000_000
"""The maximum number of sizes and types in a dump. Lists can be shared, so the file's length is not a bound."""
_MAX_PATH_FRAMES = 1 << 20
"""The maximum number of frames in all distinct call paths of a dump."""
_MAX_DISTINCT = 1 << 16
"""The maximum number of distinct calls, call paths, … in one dump. Real dumps have dozens, with dynamic shapes
thousands."""

Frame = tuple[str, int, str]
"""(file, line, function)"""


@dataclass(frozen=True, slots=True)
class EntryTraits:
    """Values that many entries share, as indices into the lists of `EntryColumns`."""

    group: int
    call: int
    progress: int


_NUMBERS = {
    "record_id": "record_id",
    "collective_seq_id": "seq",
    "p2p_seq_id": "p2p_seq",
    "op_id": "op_id",
    "time_created_ns": "created_ns",
    "time_discovered_started_ns": "started_ns",
    "time_discovered_completed_ns": "completed_ns",
}
"""Keys with individual integer values in each entry, and their columns."""

TIMES = frozenset({"created_ns", "started_ns", "completed_ns"})
"""Columns in which 0 means unknown."""

UNKNOWN = -(1 << 63)
"""The marker for an unknown value in the other number columns."""

MOST_MS = 1e18
"""Durations not below this limit are unknown."""

_SHARED = (
    *("pg_id", "process_group", "state", "retired"),
    *("profiling_name", "input_sizes", "input_dtypes", "output_sizes", "output_dtypes"),
    *("input_split_sizes", "output_split_sizes", "timeout_ms", "is_p2p"),
)
"""Keys with values that many entries share."""


@dataclass
class EntryColumns:
    """All entries, as arrays of equal length."""

    numbers: dict[str, array[int]]
    """64-bit integers: record_id, seq, p2p_seq, op_id, created_ns, started_ns, completed_ns. For unknown values see
    `TIMES` and `UNKNOWN`."""
    duration_ms: array[float]
    """Time on the device, if timing was on; NaN and values not below `MOST_MS` are unknown."""
    kind: array[int]
    """Indices into `kinds`, 32 bits each."""
    site: array[int]
    """Indices into `sites`, 32 bits each."""

    kinds: list[EntryTraits]
    groups: list[GroupName]
    calls: list[RecordedCall]
    sites: list[tuple[Frame, ...]]
    """The call paths, innermost frame first, as torch writes them; empty if there are no frames."""
    progresses: list[RecordedProgress]

    def __len__(self) -> int:
        return len(self.kind)

    def column(self, name: str) -> list[int | None]:
        """Return a column of `numbers` as a list, with None for unknown values."""
        unknown = _unknown(name)
        return [None if value == unknown else value for value in self.numbers[name]]

    def durations(self) -> list[float | None]:
        """Return `duration_ms` as a list, with None for unknown values."""
        return [value if abs(value) < MOST_MS else None for value in self.duration_ms]

    def record_range(self) -> tuple[int | None, int | None]:
        """The first and last record id."""
        numbers = self.numbers["record_id"]
        first = min(numbers, default=UNKNOWN)
        if first == UNKNOWN:
            known = [number for number in numbers if number != UNKNOWN]
            return min(known, default=None), max(known, default=None)
        return first, max(numbers)

    def latest_ns(self) -> int | None:
        """The latest time at which any entry was created, started or completed.

        Wall clock of the recording host, in nanoseconds since the epoch; None if no time is known.
        """
        return max((max(self.numbers[name], default=0) for name in TIMES), default=0) or None

    def last_call_ns(self) -> int | None:
        """The time at which the newest operation was enqueued; None if unknown.

        Wall clock of the recording host, in nanoseconds since the epoch. Earlier operations can end later.
        """
        return max(self.numbers["created_ns"], default=0) or None


T = TypeVar("T", bound=Hashable)


class _Numbered(dict[T, int]):
    """Numbers distinct values in the order of first use."""

    def __missing__(self, value: T) -> int:
        if len(self) == _MAX_DISTINCT:
            raise UnreadableInput(
                f"more than {_MAX_DISTINCT} different calls or call paths: no flight record has that many"
            )
        number = self[value] = len(self)
        return number


def read_entries(entries: Sequence[dict[str, Any]]) -> EntryColumns:
    """Read entries, whatever their keys and types, into columns; unreadable values are unknown. Raises
    `UnreadableInput`."""
    values = _columns(entries)
    unknown: list[Any] = [None] * len(entries)
    shared = _Shared()
    keys = [key for key in _SHARED if key in values]
    rows = zip(*(values[key] for key in keys), strict=True) if keys else repeat((), len(entries))
    return EntryColumns(
        numbers={name: _numbers(values.get(key, unknown), _unknown(name)) for key, name in _NUMBERS.items()},
        duration_ms=_floats(values.get("duration_ms", unknown)),
        kind=array("i", shared.kinds_of(keys, rows)),
        site=array("i", shared.sites_of(values.get("frames", unknown))),
        kinds=list(shared.kinds),
        groups=list(shared.groups),
        calls=list(shared.calls),
        sites=list(shared.sites),
        progresses=list(shared.progresses),
    )


def _columns(entries: Sequence[dict[str, Any]]) -> dict[str, Sequence[Any]]:
    """The values of each used key, entry by entry."""
    orders = {*map(tuple, entries)}
    if len(orders) == 1:  # the usual case, unless only some entries have a duration
        return dict(zip(orders.pop(), zip(*map(dict.values, entries), strict=True), strict=True))
    return {key: [entry.get(key) for entry in entries] for key in (*_NUMBERS, *_SHARED, "duration_ms", "frames")}


class _Shared:
    """The shared values of one dump's entries, each kept once."""

    def __init__(self) -> None:
        self.kinds: _Numbered[EntryTraits] = _Numbered()
        self.groups: _Numbered[GroupName] = _Numbered()
        self.calls: _Numbered[RecordedCall] = _Numbered()
        self.sites: _Numbered[tuple[Frame, ...]] = _Numbered()
        self.progresses: _Numbered[RecordedProgress] = _Numbered()
        self._room = Room(_MAX_ITEMS)
        self._room_for_paths = Room(_MAX_PATH_FRAMES)

    def kinds_of(self, keys: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> Iterator[int]:
        """Yield for each entry the number of its combination of group, call and progress.

        `rows` has the values of each entry for `keys`, a part of `_SHARED`; equal combinations get one number.
        """
        known: dict[bytes, int] = {}
        for row in rows:
            try:
                # Lists cannot be dict keys, but bytes can; a value that a row holds twice is encoded once.
                written = marshal.dumps(row)
            except ValueError:
                raise UnreadableInput("a call whose values are nested too deeply for a flight record") from None
            number = known.get(written)
            if number is None:
                number = known[written] = self._kind(dict(zip(keys, row, strict=True)))
            yield number

    def sites_of(self, paths: Iterable[Any]) -> Iterator[int]:
        """Yield the number of each call path. All frames must stay alive meanwhile, because they are compared by
        identity."""
        known: dict[tuple[int, ...], int] = {}
        for frames in paths:
            # A pickler that shares objects writes each distinct frame once, so the object identities define the path.
            objects = tuple(map(id, frames)) if type(frames) is list else ()
            number = known.get(objects)
            if number is None:
                number = known[objects] = self._site(_path(frames[:_MAX_FRAMES]) if objects else ())
            yield number

    def _site(self, path: tuple[Frame, ...]) -> int:
        if path not in self.sites and not self._room_for_paths.for_items(len(path)):
            raise UnreadableInput(
                f"call paths with more than {_MAX_PATH_FRAMES} frames: no flight record has that many"
            )
        return self.sites[path]

    def _kind(self, raw: dict[str, Any]) -> int:
        group, call, progress = group_of(raw), call_of(raw, self._room), progress_of(raw)
        return self.kinds[EntryTraits(self.groups[group], self.calls[call], self.progresses[progress])]


_FRAME = itemgetter("filename", "line", "name")


def _path(frames: list[Any]) -> tuple[Frame, ...]:
    try:
        return tuple(starmap(_known_frame, map(_FRAME, frames)))
    except (LookupError, TypeError):  # some are not frames in torch's form
        return tuple(_frame(*map(each.get, ("filename", "line", "name"))) for each in frames if type(each) is dict)


def _frame(file: Any, line: Any, function: Any) -> Frame:
    return text(file), integer(line) or 0, text(function)


_known_frame = lru_cache(1 << 16, typed=True)(_frame)
"""Cached, because picklers that share no objects write each frame many times."""


def _unknown(column: str) -> int:
    return 0 if column in TIMES else UNKNOWN


def _numbers(values: Sequence[Any], unknown: int) -> array[int]:
    try:
        return array("q", values)
    except (TypeError, OverflowError):
        numbers = map(integer, values)
        return array("q", [unknown if number is None else number for number in numbers])


def _floats(values: Sequence[Any]) -> array[float]:
    try:
        return array("d", values)
    except (TypeError, OverflowError):
        known = (isinstance(value, int | float) and abs(value) < MOST_MS for value in values)
        return array("d", [value if is_known else math.nan for value, is_known in zip(values, known, strict=True)])
