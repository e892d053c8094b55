"""Converts raw flight-record entries to bounded values: the call, its group and its progress."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_TEXT_LIMIT = 400
_DTYPE_LIMIT = 40
_MAX_SHAPE_NUMBERS = 16384


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """The recorded call, normalised so that equal calls of different ranks are equal."""

    backend: str | None
    op: str
    peer: str | None
    """Peers of a point-to-point operation as `1->2`, in ranks of the group; `?` if the source is unknown."""
    is_p2p: bool
    input_sizes: str | None
    """JSON list of shapes in elements; None if not recorded or unreadable. The same holds for the following."""
    input_dtypes: str | None
    output_sizes: str | None
    output_dtypes: str | None
    input_splits: str | None
    """JSON list with the elements of dimension 0 per rank of the group, in an all_to_all since format 2.11."""
    output_splits: str | None
    timeout_ms: int | None


@dataclass(frozen=True, slots=True)
class RecordedProgress:
    """How far an operation got, as recorded. Gloo's state is always `scheduled`; it only marks `retired`."""

    state: str | None
    retired: bool

    def has_finished(self, backend: str | None) -> bool:
        """Whether the operation finished.

        "A retired but not completed event has timed out" (FlightRecorder.hpp), but Gloo records no completion. There
        `retired` lags behind the counter of completed collectives.
        """
        return self.state == "completed" or (self.retired and backend in ("gloo", None))


@dataclass(frozen=True, slots=True)
class GroupName:
    """A process group as an entry names it. `pg_id` is a per-process counter."""

    pg_id: str
    name: str
    description: str


class Room:
    """A budget of list items that may still be read from a dump."""

    def __init__(self, items: int) -> None:
        self.left = items
        """Remaining items; negative once more were requested than the budget allows."""

    def for_items(self, number: int) -> bool:
        """Reserve room for a number of items; False if the budget is exceeded."""
        self.left -= number
        return self.left >= 0


def call_of(raw: dict[str, Any], room: Room) -> RecordedCall:
    """Read the call of an entry; values that exceed the budget are None."""
    backend, op, peer = split_profiling_name(text(raw.get("profiling_name")))
    return RecordedCall(
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


def progress_of(raw: dict[str, Any]) -> RecordedProgress:
    """Read how far an entry's operation got."""
    return RecordedProgress(text(raw.get("state")) or None, raw.get("retired") is True)


def group_of(raw: dict[str, Any]) -> GroupName:
    """Read the group that an entry names."""
    pair = raw.get("process_group")
    name, description = pair if isinstance(pair, tuple | list) and len(pair) == 2 else (pair, "")
    return GroupName(text(raw.get("pg_id")), text(name), text(description))


def split_profiling_name(name: str) -> tuple[str | None, str, str | None]:
    """Split `nccl:all_reduce`, `nccl:send 1->2` or `gloo:recv 3<-?` into (backend, operation, `source->target`)."""
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


def _shapes(raw: Any, room: Room) -> str | None:
    if not isinstance(raw, list):
        return None
    shapes = []
    numbers_left = _MAX_SHAPE_NUMBERS
    for shape in raw:
        # Versions that record a single tensor flat, or a number as text, are accepted as well.
        numbers = shape if isinstance(shape, list) else [shape]
        numbers_left -= len(numbers) + 1
        if numbers_left < 0 or not room.for_items(len(numbers) + 1):
            return None
        shapes.append([integer(number) or 0 for number in numbers])
    return json.dumps(shapes)


def _splits(raw: Any, room: Room) -> str | None:
    if not isinstance(raw, list) or not raw:
        return None
    flat = raw[0] if len(raw) == 1 and isinstance(raw[0], list) else raw
    if len(flat) > _MAX_SHAPE_NUMBERS or not room.for_items(len(flat)):
        return None
    numbers = [integer(number) for number in flat]
    return None if None in numbers else json.dumps(numbers)


def _texts(raw: Any, room: Room) -> str | None:
    if not isinstance(raw, list) or len(raw) > _MAX_SHAPE_NUMBERS or not room.for_items(len(raw)):
        return None
    return json.dumps([text(item)[:_DTYPE_LIMIT] for item in raw])


def integer(raw: Any) -> int | None:
    """Convert a number or text to a 64-bit integer; None for anything else."""
    if type(raw) is str and len(raw) <= 20:
        try:
            raw = int(raw)
        except ValueError:
            return None
    return int(raw) if isinstance(raw, int) and -(1 << 63) <= raw < 1 << 63 else None


def text(raw: Any) -> str:
    """Convert to a bounded text, also from a number; empty for anything else. Lone surrogates become `?`."""
    if type(raw) is str:
        bounded = raw[:_TEXT_LIMIT]
        return bounded if bounded.isascii() else bounded.encode("utf-8", "replace").decode()
    return str(raw) if type(raw) is int and raw.bit_length() < 64 else ""
