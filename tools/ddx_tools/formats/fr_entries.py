"""The entries of a flight record, column by column.

What entries share (the call with its sizes and types, the call path, the group) is kept once and referred to by
number: a dump of 2,000 entries has some dozens of each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from ddx_tools.errors import UnreadableInput
from ddx_tools.formats.fr_calls import Call, GroupName, Progress, Room, call_of, group_of, integer, progress_of, text
from ddx_tools.formats.fr_pickle import Scanned
from ddx_tools.formats.fr_stencils import Batch, Stencil, StencilReader
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

_TIMES = frozenset({"created_ns", "started_ns", "completed_ns"})
"""Columns where 0 is unknown."""

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
    """All entries, as Arrow arrays of equal length; unknown values are null."""

    numbers: dict[str, Any]
    """int64 arrays: record_id, seq, p2p_seq, op_id, created_ns, started_ns, completed_ns."""
    duration_ms: Any
    """float64 array: time on the device, where timing was on."""
    kind: Any
    """int32 array of indices of `kinds`."""
    site: Any
    """int32 array of indices of `sites`."""

    kinds: list[Kind]
    groups: list[GroupName]
    calls: list[Call]
    sites: list[tuple[Frame, ...]]
    """Call paths, innermost frame first, as torch writes them; an empty one without frames."""
    progresses: list[Progress]

    def __len__(self) -> int:
        return len(self.kind)

    def column(self, name: str) -> list[Any]:
        """Values of a column of `numbers`, as Python's integers."""
        values: list[Any] = self.numbers[name].to_pylist()
        return values


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
        self._numbers: dict[str, list[int | None]] = {name: [] for name in _NUMBERS.values()}
        self._durations: list[float | None] = []
        self._kind: list[int] = []
        self._site: list[int] = []
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
            values = [integer(raw.get(key)) for raw in entries]
            self._numbers[name] += [value or 0 for value in values] if name in _TIMES else values
        self._durations += [_number(raw.get("duration_ms")) for raw in entries]
        self._kind += [self._kind_of(raw) for raw in entries]
        self._site += [self._site_of(raw.get("frames")) for raw in entries]

    def add_scanned(self, scanned: Scanned) -> None:
        """The entries that templates have read."""
        for template in scanned.templates:
            self._add_template(template, scanned.decode)

    def columns(self) -> EntryColumns:
        """All that was added."""
        import pyarrow as pa

        return EntryColumns(
            {name: _int64(values, zero_is_unknown=name in _TIMES) for name, values in self._numbers.items()},
            pa.array(self._durations, pa.float64()),
            pa.array(self._kind, pa.int32()),
            pa.array(self._site, pa.int32()),
            list(self._kinds),
            list(self._groups),
            list(self._calls),
            list(self._sites),
            list(self._progresses),
        )

    def _add_template(self, read: StencilReader, decode: Callable[[bytes], list[Any]]) -> None:
        # Each distinct call path, and each distinct stencil, is decoded once.
        kinds = [self._kind_of(_shared_values(stencil, decode)) for stencil in read.stencils]
        sites: _Known[bytes, int] = _Known(lambda raw: self._site_of(decode(raw)[0] if raw else None))
        for names, batch in read.batches.items():
            self._kind += [kinds[number] for number in batch.stencils]
            if read.template.has_path:
                self._site += [sites[path] for path in batch.paths]
            else:
                self._site += [sites[read.stencils[number].path] for number in batch.stencils]
            self._add_numbers(names, batch)

    def _add_numbers(self, names: tuple[str, ...], batch: Batch) -> None:
        found: dict[str, list[Any]] = {name: batch.numbers[at :: len(names)] for at, name in enumerate(names)}
        unknown, no_time = [None] * len(batch.paths), [0] * len(batch.paths)
        for name, values in self._numbers.items():
            values += found.get(name, no_time if name in _TIMES else unknown)
        self._durations += map(_duration, found["duration_ms"]) if "duration_ms" in found else unknown

    def _kind_of(self, raw: dict[str, Any]) -> int:
        return self._kinds[
            Kind(
                group=self._groups[group_of(raw)],
                call=self._calls[call_of(raw, self._room)],
                progress=self._progresses[progress_of(raw)],
            )
        ]

    def _site_of(self, frames: Any) -> int:
        if not isinstance(frames, list):
            return self._sites[()]
        # Torch writes each distinct frame once and refers to it: the objects are the path.
        objects = tuple(map(id, frames[:_MAX_FRAMES]))
        number = self._known_paths.get(objects)
        if number is None:
            known = self._frames.get
            path = tuple([known(id(each)) or self._frame(each) for each in frames[:_MAX_FRAMES] if type(each) is dict])
            if path not in self._sites and not self._room_for_paths.for_items(len(path)):
                raise UnreadableInput(f"call paths of more than {_MAX_PATH_FRAMES} frames: no flight record has them")
            number = self._sites[path]
            # Other picklers may write equal frames anew each time: then there is nothing to be gained.
            if self._room_for_objects.for_items(len(objects)):
                self._known_paths[objects] = number
        return number

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


def _number(raw: Any) -> float | None:
    return float(raw) if type(raw) in (int, float) and abs(raw) < 1e18 else None


def _shared_values(stencil: Stencil, decode: Callable[[bytes], list[Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for keys, raw in stencil.shared:
        values.update(zip(keys, decode(raw), strict=True))
    return values


def _duration(hole: int | bytes) -> float | None:
    """A number of a stencil: of a float its bytes."""
    return _number(hole if isinstance(hole, int) else struct.unpack(">d", hole)[0])


def _int64(values: list[int | None], zero_is_unknown: bool) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        # A third of the time that pyarrow takes, value by value.
        packed = struct.pack(f"{len(values)}q", *values)
    except struct.error:  # one is unknown
        return pa.array(values, pa.int64())
    numbers = pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(packed)])
    if not zero_is_unknown:
        return numbers
    zero, null = _zero_and_null()
    return pc.if_else(pc.equal(numbers, zero), null, numbers)


@cache
def _zero_and_null() -> tuple[Any, Any]:
    """Made once: for each Python value that it converts, pyarrow looks for packages that may not be there."""
    import pyarrow as pa

    return pa.scalar(0, pa.int64()), pa.scalar(None, pa.int64())
