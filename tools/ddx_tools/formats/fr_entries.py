"""The entries of a flight record, column by column.

What entries share (the call with its sizes and types, the call path, the group) is kept once and referred to by
number: a dump of 2,000 entries has some dozens of each.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ddx_tools.errors import UnreadableInput
from ddx_tools.formats.fr_calls import Call, GroupName, Progress, Room, call_of, group_of, integer, progress_of, text
from ddx_tools.formats.fr_meanings import CallMade
from ddx_tools.formats.fr_pickle import Scanned
from ddx_tools.formats.fr_stencils import Batch, StencilReader
from ddx_tools.formats.fr_templates import PATH

_MAX_FRAMES = 200
_MAX_ITEMS = 8_000_000
"""Sizes and types of all entries of a dump. Lists can be shared: the length of a file is no bound."""
_MAX_PATH_FRAMES = 1 << 20
"""Frames of all different call paths of a dump."""
_MAX_DISTINCT = 1 << 16
"""Different calls, call paths, … of one dump. Real ones have some dozens, with dynamic shapes some thousands."""

Frame = tuple[str, int, str]
"""File, line, function."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What many entries share, as numbers that index the lists of `EntryColumns`."""

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
"""Keys whose values are integers of their own in each entry, and their columns."""

TIMES = frozenset({"created_ns", "started_ns", "completed_ns"})
"""Columns where 0 is unknown."""

UNKNOWN = -(1 << 63)
"""Stands for an unknown value in the other columns of numbers."""

MOST_MS = 1e18
"""A duration that is not below it is unknown."""

_OF_THE_GROUP = frozenset({"pg_id", "process_group"})

_SHARED = frozenset(
    {
        *("pg_id", "process_group", "state", "retired"),
        *("profiling_name", "input_sizes", "input_dtypes", "output_sizes", "output_dtypes"),
        *("input_split_sizes", "output_split_sizes", "timeout_ms", "is_p2p"),
    }
)
"""Keys whose values many entries share."""

KINDS = {**_NUMBERS, "duration_ms": "duration_ms", "frames": PATH, **dict.fromkeys(_SHARED, "shared")}
"""The keys of an entry that are read, and what a template reads them as."""

NUMERIC: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(_NUMBERS.values(), (int, type(None))),
    "duration_ms": (int, float, type(None)),
}
"""Columns that hold numbers of their own in each entry, and the types that templates read there."""


@dataclass
class EntryColumns:
    """All entries, as arrays of equal length."""

    numbers: dict[str, array[int]]
    """64-bit integers: record_id, seq, p2p_seq, op_id, created_ns, started_ns, completed_ns. `TIMES` and `UNKNOWN`
    say what is unknown."""
    duration_ms: array[float]
    """Time on the device, where timing was on; NaN and what is not below `MOST_MS` is unknown."""
    kind: array[int]
    """Indices of `kinds`, 32 bits each."""
    site: array[int]
    """Indices of `sites`, 32 bits each."""

    kinds: list[Kind]
    groups: list[GroupName]
    calls: list[Call]
    sites: list[tuple[Frame, ...]]
    """Call paths, innermost frame first, as torch writes them; an empty one without frames."""
    progresses: list[Progress]

    def __len__(self) -> int:
        return len(self.kind)

    def column(self, name: str) -> list[int | None]:
        """Values of a column of `numbers`, None where unknown."""
        unknown = _unknown(name)
        return [None if value == unknown else value for value in self.numbers[name]]

    def durations(self) -> list[float | None]:
        """`duration_ms`, None where unknown."""
        return [value if abs(value) < MOST_MS else None for value in self.duration_ms]

    def record_range(self) -> tuple[int | None, int | None]:
        """The first and the last record id."""
        numbers = self.numbers["record_id"]
        first = min(numbers, default=UNKNOWN)
        if first == UNKNOWN:
            known = [number for number in numbers if number != UNKNOWN]
            return min(known, default=None), max(known, default=None)
        return first, max(numbers)

    def latest_ns(self) -> int | None:
        """The latest time that any entry mentions."""
        return max((max(self.numbers[name], default=0) for name in TIMES), default=0) or None

    def last_call_ns(self) -> int | None:
        """When the latest operation was called. Ends of older ones may have been noticed later."""
        return max(self.numbers["created_ns"], default=0) or None


T = TypeVar("T", bound=Hashable)


class _Numbered(dict[T, int]):
    """Numbers distinct values in the order in which they come."""

    def __missing__(self, value: T) -> int:
        if len(self) == _MAX_DISTINCT:
            raise UnreadableInput(f"more than {_MAX_DISTINCT} different calls or call paths: no flight record has them")
        number = self[value] = len(self)
        return number


class EntryReader:
    """Reads entries into columns, from dictionaries and from the raw columns of templates."""

    def __init__(self) -> None:
        self._numbers = {name: array("q") for name in _NUMBERS.values()}
        self._durations = array("d")
        self._kind = array("i")
        self._site = array("i")
        self._kinds: _Numbered[Kind] = _Numbered()
        self._groups: _Numbered[GroupName] = _Numbered()
        self._calls: _Numbered[Call] = _Numbered()
        self._sites: _Numbered[tuple[Frame, ...]] = _Numbered()
        self._progresses: _Numbered[Progress] = _Numbered()
        self._frames: dict[int, Frame] = {}
        self._known_paths: dict[tuple[int, ...], int] = {}
        self._room = Room(_MAX_ITEMS)
        self._room_for_paths = Room(_MAX_PATH_FRAMES)
        self._room_for_objects = Room(_MAX_PATH_FRAMES)

    def add(self, entries: list[dict[str, Any]]) -> None:
        """Entries as dictionaries, of any keys and any types: what cannot be read is unknown.

        The dictionaries must stay alive until all of a dump is read: their frames are known by identity.
        """
        for key, name in _NUMBERS.items():
            unknown = _unknown(name)
            values = (integer(raw.get(key)) for raw in entries)
            self._numbers[name].extend(unknown if value is None else value for value in values)
        self._durations.extend(_duration(raw.get("duration_ms")) for raw in entries)
        self._kind.extend(self._kind_of(raw) for raw in entries)
        self._site.extend(self._site_of(raw.get("frames")) for raw in entries)

    def add_scanned(self, scanned: Scanned) -> None:
        """The entries that templates have read."""
        for template in scanned.templates:
            self._add_template(template, scanned.decode)

    def columns(self) -> EntryColumns:
        """All that was added."""
        return EntryColumns(
            self._numbers,
            self._durations,
            self._kind,
            self._site,
            list(self._kinds),
            list(self._groups),
            list(self._calls),
            list(self._sites),
            list(self._progresses),
        )

    def _add_template(self, read: StencilReader, decode: Callable[[bytes], list[Any]]) -> None:
        # Each distinct call path, and each distinct stencil, is decoded once.
        known = _Known(decode)
        kinds: _Known[int, int] = _Known(lambda number: self._kind_of_stencil(read, number, known))
        frames: _Known[int, Frame | None] = _Known(lambda number: self._frame_at(read.values, number))
        sites: _Known[bytes, int] = _Known(lambda raw: self._site_of_raw(read, raw, frames, decode))
        for names, batch in read.batches.items():
            self._kind += _indices(map(kinds.__getitem__, batch.stencils))
            if read.template.has_path:
                self._site += _indices(map(sites.__getitem__, batch.paths))
            else:
                self._site += _indices(sites[read.stencil(number).path] for number in batch.stencils)
            self._add_numbers(names, batch)

    def _add_numbers(self, names: tuple[tuple[str, bool], ...], batch: Batch) -> None:
        numbers = array("q", bytes(batch.numbers))
        found = {name: numbers[at :: len(names)] for at, (name, _) in enumerate(names)}
        entries = len(batch.paths)
        for name, values in self._numbers.items():
            values += found[name] if name in found else array("q", [_unknown(name)]) * entries
        if ("duration_ms", True) in names:
            self._durations += _floats(found["duration_ms"])
        elif "duration_ms" in found:
            self._durations.extend(map(float, found["duration_ms"]))
        else:
            self._durations += array("d", [math.nan]) * entries

    def _kind_of(self, raw: dict[str, Any]) -> int:
        return self._kind_with(raw, call_of(raw, self._room), progress_of(raw))

    def _kind_with(self, raw: dict[str, Any], call: Call, progress: Progress) -> int:
        group = self._groups[group_of(raw)]
        return self._kinds[Kind(group, self._calls[call], self._progresses[progress])]

    def _kind_of_stencil(self, read: StencilReader, number: int, decoded: Mapping[bytes, list[Any]]) -> int:
        """What the entries of a stencil share. Ranks differ in their groups: what they call is mostly known."""
        shared = read.stencil(number).shared
        others = [(keys, raw) for keys, raw in shared if _OF_THE_GROUP.isdisjoint(keys)]
        of_the_group = [(keys, raw) for keys, raw in shared if _OF_THE_GROUP.issuperset(keys)]
        made = read.meanings.call(number, read.values)
        if made is not None and len(others) + len(of_the_group) == len(shared) and made.items <= self._room.left:
            self._room.for_items(made.items)
            return self._kind_with(_values(of_the_group, decoded), made.call, made.progress)
        values = _values(shared, decoded)
        before = self._room.left
        call, progress = call_of(values, self._room), progress_of(values)
        if self._room.left >= 0:
            raw_of_others = b"".join([raw for _, raw in others])
            read.meanings.keep(number, raw_of_others, read.values, CallMade(call, progress, before - self._room.left))
        return self._kind_with(values, call, progress)

    def _site_of_raw(
        self,
        read: StencilReader,
        raw: bytes,
        frames: Mapping[int, Frame | None],
        decode: Callable[[bytes], list[Any]],
    ) -> int:
        numbers = read.meanings.path(raw)
        if 0 < len(numbers) <= _MAX_FRAMES:
            path = [frame for number in numbers if (frame := frames[number]) is not None]
            if len(path) == len(numbers):
                return self._number_of(tuple(path))
        return self._site_of(decode(raw)[0] if raw else None)

    def _frame_at(self, values: Sequence[Any], number: int) -> Frame | None:
        raw = values[number] if number < len(values) else None
        return (self._frames.get(id(raw)) or self._frame(raw)) if type(raw) is dict else None

    def _site_of(self, frames: Any) -> int:
        if not isinstance(frames, list):
            return self._sites[()]
        # Torch writes each distinct frame once and refers to it: the objects are the path.
        objects = tuple(map(id, frames[:_MAX_FRAMES]))
        number = self._known_paths.get(objects)
        if number is None:
            known = self._frames.get
            path = tuple([known(id(each)) or self._frame(each) for each in frames[:_MAX_FRAMES] if type(each) is dict])
            number = self._number_of(path)
            # Other picklers may write equal frames anew each time: then there is nothing to be gained.
            if self._room_for_objects.for_items(len(objects)):
                self._known_paths[objects] = number
        return number

    def _number_of(self, path: tuple[Frame, ...]) -> int:
        if path not in self._sites and not self._room_for_paths.for_items(len(path)):
            raise UnreadableInput(f"call paths of more than {_MAX_PATH_FRAMES} frames: no flight record has them")
        return self._sites[path]

    def _frame(self, raw: dict[Any, Any]) -> Frame:
        frame = text(raw.get("filename")), integer(raw.get("line")) or 0, text(raw.get("name"))
        self._frames[id(raw)] = frame
        return frame


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Known(dict[K, V]):
    """Looks values up at the speed of a dictionary; what is not there is made, once."""

    def __init__(self, make: Callable[[K], V]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: K) -> V:
        value = self[key] = self._make(key)
        return value


def _unknown(column: str) -> int:
    return 0 if column in TIMES else UNKNOWN


def _indices(values: Iterable[int]) -> array[int]:
    """A third of the time that it takes to make an array value by value."""
    together = tuple(values)
    return array("i", struct.pack(f"={len(together)}i", *together))


def _duration(raw: Any) -> float:
    return float(raw) if type(raw) in (int, float) and abs(raw) < MOST_MS else math.nan


def _floats(read_as_integers: array[int]) -> array[float]:
    """What stencils have read of floats, which are big-endian, as if they were little-endian integers."""
    read_as_integers.byteswap()
    return array("d", read_as_integers.tobytes())


def _values(columns: Iterable[tuple[tuple[str, ...], bytes]], decoded: Mapping[bytes, list[Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for keys, raw in columns:
        values.update(zip(keys, decoded[raw], strict=True))
    return values
