"""The entries of a flight record, column by column.

What entries share (the call with its sizes and types, the call path, the group) is kept once and referred to by
number: a dump of 2,000 entries has some dozens of each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

from ddx_tools.errors import UnreadableInput
from ddx_tools.formats.fr_integers import pickled_integers
from ddx_tools.formats.fr_pickle import Scanned
from ddx_tools.formats.fr_templates import Template

_TEXT_LIMIT = 400
_DTYPE_LIMIT = 40
_MAX_FRAMES = 200
_MAX_SHAPE_NUMBERS = 16384
_MAX_ITEMS = 8_000_000
"""Sizes and types of all entries of a dump. Lists can be shared: the length of a file is no bound."""
_MAX_PATH_FRAMES = 1 << 20
"""Frames of all different call paths of a dump."""
_MAX_DISTINCT = 1 << 16
"""Different calls, call paths, … of one dump. Real ones have some dozens, with dynamic shapes some thousands."""

Frame = tuple[str, int, str]
"""File, line, function."""


@dataclass(frozen=True, slots=True)
class Call:
    """What was called: equal calls of all ranks should look alike."""

    backend: str | None
    op: str
    peer: str | None
    """`1->2` of a point-to-point operation, in ranks of the group; `?` where the source is unknown."""
    is_p2p: bool
    input_sizes: str | None
    """JSON list of shapes, elements; None if they are not recorded or unreadable. So are the others."""
    input_dtypes: str | None
    output_sizes: str | None
    output_dtypes: str | None
    input_splits: str | None
    """JSON list: elements of dimension 0 for each rank of the group, in an all_to_all of format 2.11 and later."""
    output_splits: str | None
    timeout_ms: int | None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an operation came, as recorded. Gloo's state is always `scheduled`; it only marks `retired`."""

    state: str | None
    retired: bool


@dataclass(frozen=True, slots=True)
class GroupName:
    """A process group as an entry names it. `pg_id` is a counter of the process."""

    pg_id: str
    name: str
    description: str


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
"""Keys whose values are integers of their own in each entry, and their columns. A time of 0 is unknown."""

_SHARED = frozenset(
    {
        *("pg_id", "process_group", "state", "retired"),
        *("profiling_name", "input_sizes", "input_dtypes", "output_sizes", "output_dtypes"),
        *("input_split_sizes", "output_split_sizes", "timeout_ms", "is_p2p"),
    }
)
"""Keys whose values many entries share."""

KINDS = {**_NUMBERS, "duration_ms": "duration_ms", "frames": "site", **dict.fromkeys(_SHARED, "shared")}
"""The keys of an entry that are read, and what a template reads them as."""

INTEGERS = frozenset(_NUMBERS.values())
"""Columns whose values templates read without decoding them one by one."""


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


class _Room:
    """How many items may still be read."""

    def __init__(self, items: int) -> None:
        self._items = items

    def for_items(self, number: int) -> bool:
        """Take room for so many; false if there is none left."""
        self._items -= number
        return self._items >= 0


class EntryReader:
    """Reads entries into columns, from dictionaries and from the raw columns of templates."""

    def __init__(self) -> None:
        self._numbers: dict[str, list[Any]] = {name: [] for name in _NUMBERS.values()}
        self._durations: list[Any] = []
        self._kind: list[Any] = []
        self._site: list[Any] = []
        self._kinds: _Numbered[Kind] = _Numbered()
        self._groups: _Numbered[GroupName] = _Numbered()
        self._calls: _Numbered[Call] = _Numbered()
        self._sites: _Numbered[tuple[Frame, ...]] = _Numbered()
        self._progresses: _Numbered[Progress] = _Numbered()
        self._frames: dict[int, Frame] = {}
        self._known_paths: dict[tuple[int, ...], int] = {}
        self._room = _Room(_MAX_ITEMS)
        self._room_for_paths = _Room(_MAX_PATH_FRAMES)
        self._room_for_objects = _Room(_MAX_PATH_FRAMES)

    def add(self, entries: list[dict[str, Any]]) -> None:
        """Entries as dictionaries, of any keys and any types: what cannot be read is unknown.

        The dictionaries must stay alive until all of a dump is read: their frames are known by identity.
        """
        import pyarrow as pa

        for key, name in _NUMBERS.items():
            values = [integer(raw.get(key)) for raw in entries]
            if name.endswith("_ns"):
                values = [value or None for value in values]
            self._numbers[name].append(pa.array(values, pa.int64()))
        self._durations.append(pa.array([_number(raw.get("duration_ms")) for raw in entries], pa.float64()))
        self._kind.append(pa.array([self._kind_of(raw) for raw in entries], pa.int32()))
        self._site.append(pa.array([self._site_of(raw.get("frames")) for raw in entries], pa.int32()))

    def add_scanned(self, scanned: Scanned) -> None:
        """The entries that templates have read."""
        for template in scanned.templates:
            if template.rows:
                self._add_template(template, scanned.decode)

    def columns(self) -> EntryColumns:
        """All that was added."""
        import pyarrow as pa

        return EntryColumns(
            {name: pa.concat_arrays(parts or [pa.array([], pa.int64())]) for name, parts in self._numbers.items()},
            pa.concat_arrays(self._durations or [pa.array([], pa.float64())]),
            pa.concat_arrays(self._kind or [pa.array([], pa.int32())]),
            pa.concat_arrays(self._site or [pa.array([], pa.int32())]),
            list(self._kinds),
            list(self._groups),
            list(self._calls),
            list(self._sites),
            list(self._progresses),
        )

    def _add_template(self, template: Template, decode: Callable[[bytes], list[Any]]) -> None:
        import pyarrow as pa

        shared: list[tuple[tuple[str, ...], tuple[bytes, ...]]] = []
        plain: dict[str, tuple[bytes, ...]] = {}
        for (kind, keys), column in zip(template.columns, zip(*template.rows, strict=True), strict=True):
            if kind == "shared":
                shared.append((keys, column))
            else:
                plain[kind] = column
        rows = len(template.rows)
        for name, parts in self._numbers.items():
            parts.append(pickled_integers(plain[name], name) if name in plain else pa.nulls(rows, pa.int64()))
        durations = [_number(decode(raw)[0]) for raw in plain.get("duration_ms", ())] or [None] * rows
        self._durations.append(pa.array(durations, pa.float64()))

        def kind_of(raws: tuple[bytes, ...]) -> int:
            values: dict[str, Any] = {}
            for (keys, _), raw in zip(shared, raws, strict=True):
                values.update(zip(keys, decode(raw), strict=True))
            return self._kind_of(values)

        # Each distinct call path, and each distinct combination of the rest, is decoded once.
        kinds: _Known[tuple[bytes, ...], int] = _Known(kind_of)
        combined = zip(*(column for _, column in shared), strict=True) if shared else [()] * rows
        numbers = [kinds[raws] for raws in combined]
        self._kind.append(pa.array(numbers, pa.int32()))
        sites: _Known[bytes, int] = _Known(lambda raw: self._site_of(decode(raw)[0]))
        no_site = self._site_of(None)
        self._site.append(pa.array([sites[raw] for raw in plain.get("site", ())] or [no_site] * rows, pa.int32()))

    def _kind_of(self, raw: dict[str, Any]) -> int:
        return self._kinds[
            Kind(
                group=self._groups[_group_name(raw)],
                call=self._calls[_call(raw, self._room)],
                progress=self._progresses[_progress(raw)],
            )
        ]

    def _site_of(self, frames: Any) -> int:
        if not isinstance(frames, list):
            return self._sites[()]
        # Torch writes each distinct frame once and refers to it: the objects are the path.
        objects = tuple(map(id, frames[:_MAX_FRAMES]))
        number = self._known_paths.get(objects)
        if number is None:
            path = tuple([self._frame(frame) for frame in frames[:_MAX_FRAMES] if isinstance(frame, dict)])
            if path not in self._sites and not self._room_for_paths.for_items(len(path)):
                raise UnreadableInput(f"call paths of more than {_MAX_PATH_FRAMES} frames: no flight record has them")
            number = self._sites[path]
            # Other picklers may write equal frames anew each time: then there is nothing to be gained.
            if self._room_for_objects.for_items(len(objects)):
                self._known_paths[objects] = number
        return number

    def _frame(self, raw: dict[Any, Any]) -> Frame:
        known = self._frames.get(id(raw))
        if known is None:
            known = (text(raw.get("filename")), integer(raw.get("line")) or 0, text(raw.get("name")))
            self._frames[id(raw)] = known
        return known


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


def _call(raw: dict[str, Any], room: _Room) -> Call:
    backend, op, peer = split_profiling_name(text(raw.get("profiling_name")))
    return Call(
        backend=backend,
        op=op,
        peer=peer,
        is_p2p=raw.get("is_p2p") is True or peer is not None,
        input_sizes=_shapes(raw.get("input_sizes"), room),
        input_dtypes=_texts(raw.get("input_dtypes"), room),
        output_sizes=_shapes(raw.get("output_sizes"), room),
        output_dtypes=_texts(raw.get("output_dtypes"), room),
        input_splits=_splits(raw.get("input_split_sizes"), room),
        output_splits=_splits(raw.get("output_split_sizes"), room),
        timeout_ms=integer(raw.get("timeout_ms")) or None,
    )


def _progress(raw: dict[str, Any]) -> Progress:
    return Progress(text(raw.get("state")) or None, raw.get("retired") is True)


def _group_name(raw: dict[str, Any]) -> GroupName:
    pair = raw.get("process_group")
    name, description = pair if isinstance(pair, tuple | list) and len(pair) == 2 else (pair, "")
    return GroupName(text(raw.get("pg_id")), text(name), text(description))


def split_profiling_name(name: str) -> tuple[str | None, str, str | None]:
    """(backend, operation, peers as `source->target`) of `nccl:all_reduce`, `nccl:send 1->2`, `gloo:recv 3<-?`."""
    backend, colon, rest = name.partition(":")
    if not colon:
        backend, rest = "", name
    op, _, ranks = rest.strip().partition(" ")
    if "->" in ranks:
        source, _, target = ranks.partition("->")
    elif "<-" in ranks:
        target, _, source = ranks.partition("<-")
    else:
        return backend or None, rest.strip(), None
    return backend or None, op, f"{source.strip()}->{target.strip()}"


def _shapes(raw: Any, room: _Room) -> str | None:
    if not isinstance(raw, list):
        return None
    shapes = []
    numbers_left = _MAX_SHAPE_NUMBERS
    for shape in raw:
        # A version that records a single tensor flat, or a number as text, is still readable.
        numbers = shape if isinstance(shape, list) else [shape]
        numbers_left -= len(numbers) + 1
        if numbers_left < 0 or not room.for_items(len(numbers) + 1):
            return None
        shapes.append([integer(number) or 0 for number in numbers])
    return json.dumps(shapes)


def _splits(raw: Any, room: _Room) -> str | None:
    if not isinstance(raw, list) or not raw:
        return None
    flat = raw[0] if len(raw) == 1 and isinstance(raw[0], list) else raw
    if len(flat) > _MAX_SHAPE_NUMBERS or not room.for_items(len(flat)):
        return None
    numbers = [integer(number) for number in flat]
    return None if None in numbers else json.dumps(numbers)


def _texts(raw: Any, room: _Room) -> str | None:
    if not isinstance(raw, list) or len(raw) > _MAX_SHAPE_NUMBERS or not room.for_items(len(raw)):
        return None
    return json.dumps([text(item)[:_DTYPE_LIMIT] for item in raw])


def _number(raw: Any) -> float | None:
    return float(raw) if type(raw) in (int, float) and abs(raw) < 1e18 else None


def integer(raw: Any) -> int | None:
    """A 64-bit integer, also from text; None for anything else."""
    if type(raw) is str and len(raw) <= 20:
        try:
            raw = int(raw)
        except ValueError:
            return None
    return raw if type(raw) is int and -(1 << 63) <= raw < 1 << 63 else None


def text(raw: Any) -> str:
    """A bounded text, also of a number; empty for anything else. Half characters, which JSON can hold, become `?`."""
    if type(raw) is str:
        bounded = raw[:_TEXT_LIMIT]
        return bounded if bounded.isascii() else bounded.encode("utf-8", "replace").decode()
    return str(raw) if type(raw) is int and raw.bit_length() < 64 else ""
