"""PyTorch flight records, from bytes to one shape: pickle or JSON, format versions 2.1 to 2.10 and later.

Source of the format: torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorderDetail.hpp (2.8 to
2.15), before that TraceUtils.h and NCCLUtils.hpp (2.4 to 2.7). The JSON twin has no frames, writes 0 for an
unknown time, numbers of `pg_status` as strings, and leaves `entries` out if there are none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddx_tools.errors import UnreadableInput
from ddx_tools.formats import fr_pickle

_TEXT_LIMIT = 400
_MAX_FRAMES = 200
_MAX_SHAPE_NUMBERS = 16384
_HELP = (
    "A flight record is what torch writes with TORCH_NCCL_DUMP_ON_TIMEOUT, through the debug pipe, or what "
    "`ddx run` collects: a pickle or JSON with `version` and `entries`."
)

Shapes = tuple[tuple[int, ...], ...]
Frame = tuple[str, int, str]
"""File, line, function."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One recorded operation. Unknown values are None, never 0."""

    record_id: int | None
    pg_id: str
    group_name: str
    group_description: str
    seq: int | None
    p2p_seq: int | None
    op_id: int | None
    backend: str | None
    op: str
    peer: str | None
    """`1->2` of a point-to-point operation, in ranks of the group; `?` where the source is unknown."""
    is_p2p: bool
    input_sizes: Shapes | None
    input_dtypes: tuple[str, ...]
    output_sizes: Shapes | None
    output_dtypes: tuple[str, ...]
    state: str
    retired: bool
    created_ns: int | None
    completed_ns: int | None
    timeout_ms: int | None
    frames: tuple[Frame, ...]
    """Innermost first, as torch writes them; empty without frames."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """`pg_status` of one process group; -1 of the recorder ("none yet") is 0 here."""

    last_enqueued: int | None
    last_completed: int | None


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """`pg_config` of one process group. `ranks` is None where the recorder lists none (Gloo's sub-groups)."""

    name: str
    description: str
    ranks: tuple[int, ...] | None


@dataclass(frozen=True)
class FrDump:
    """One dump: what one recorder of one process held."""

    encoding: str
    """`pickle` or `json`."""
    version: str
    entries: tuple[Entry, ...]
    config: tuple[GroupConfig, ...]
    status: Mapping[str, GroupStatus]
    """By pg_id, a counter of the process: not the name of the group, and not comparable between ranks."""
    with_frames: bool

    @property
    def backend(self) -> str | None:
        """The backend of the newest entry that names one."""
        return next((e.backend for e in reversed(self.entries) if e.backend), None)


def looks_like_dump(head: bytes) -> bool:
    """Whether the first bytes of a file (1 KiB do) may be those of a flight record."""
    if head[:1] == b"\x80":
        return b"version" in head[:1024] or b"pg_config" in head[:1024] or b"entries" in head[:1024]
    text = head.lstrip()
    keys = (b'"pg_config"', b'"pg_status"', b'"entries"', b'"comm_lib_version"', b'"nccl_version"')
    return text[:1] == b"{" and any(key in text[:1024] for key in keys)


def read_dump(data: bytes) -> FrDump:
    """A dump from its bytes, pickle or JSON. Raises `UnreadableInput` with what is wrong; runs nothing."""
    if not data:
        raise UnreadableInput("the file is empty (0 bytes): the process died before it wrote its record", _HELP)
    if data[:1] == b"\x80":
        return _normalise(fr_pickle.load(data), "pickle")
    if data[:4] == b"PK\x03\x04":
        raise UnreadableInput("this is a zip archive, such as a torch checkpoint, not a flight record", _HELP)
    if data.lstrip()[:1] != b"{":
        raise UnreadableInput("this is neither a pickle nor a JSON object", _HELP)
    if len(data) > fr_pickle.MAX_BYTES:
        raise UnreadableInput(f"JSON of {len(data)} bytes is larger than the {fr_pickle.MAX_BYTES} that are read")
    try:
        return _normalise(json.loads(data), "json")
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(f"damaged or truncated JSON: {str(error)[:200]}", _HELP) from None


def _normalise(top: Any, encoding: str) -> FrDump:
    if not isinstance(top, dict):
        raise UnreadableInput(f"the record is a {type(top).__name__}, not a dictionary", _HELP)
    if not {"entries", "pg_config", "pg_status"} & top.keys():
        raise UnreadableInput("none of the keys entries, pg_config, pg_status: not a flight record", _HELP)
    raw_entries = top.get("entries") or []
    if not isinstance(raw_entries, list):
        raise UnreadableInput("`entries` is not a list", _HELP)
    reader = _EntryReader()
    entries = tuple(reader.read(raw) for raw in raw_entries if isinstance(raw, dict))
    return FrDump(
        encoding=encoding,
        version=_text(top.get("version")),
        entries=entries,
        config=tuple(_config(top.get("pg_config"))),
        status=dict(_status(top.get("pg_status"))),
        with_frames=any(entry.frames for entry in entries),
    )


class _EntryReader:
    """Normalises entries. Equal shapes, names and frame lists become one object: dumps repeat themselves."""

    def __init__(self) -> None:
        self._shapes: dict[Shapes, Shapes] = {}
        self._frames: dict[int, Frame] = {}
        self._stacks: dict[tuple[Frame, ...], tuple[Frame, ...]] = {}
        self._names: dict[str, tuple[str | None, str, str | None]] = {}

    def read(self, raw: dict[Any, Any]) -> Entry:
        name, description = _pair(raw.get("process_group"))
        backend, op, peer = self._operation(_text(raw.get("profiling_name")))
        state = _text(raw.get("state"))
        return Entry(
            record_id=_integer(raw.get("record_id")),
            pg_id=_text(raw.get("pg_id")),
            group_name=name,
            group_description=description,
            seq=_integer(raw.get("collective_seq_id")),
            p2p_seq=_integer(raw.get("p2p_seq_id")),
            op_id=_integer(raw.get("op_id")),
            backend=backend,
            op=op,
            peer=peer,
            is_p2p=raw.get("is_p2p") is True or peer is not None,
            input_sizes=self._sizes(raw.get("input_sizes")),
            input_dtypes=_texts(raw.get("input_dtypes")),
            output_sizes=self._sizes(raw.get("output_sizes")),
            output_dtypes=_texts(raw.get("output_dtypes")),
            state=state,
            retired=raw.get("retired") is True,
            created_ns=_integer(raw.get("time_created_ns")) or None,
            completed_ns=_integer(raw.get("time_discovered_completed_ns")) or None,
            timeout_ms=_integer(raw.get("timeout_ms")) or None,
            frames=self._stack(raw.get("frames")),
        )

    def _operation(self, profiling_name: str) -> tuple[str | None, str, str | None]:
        known = self._names.get(profiling_name)
        if known is None:
            known = self._names[profiling_name] = split_profiling_name(profiling_name)
        return known

    def _sizes(self, raw: Any) -> Shapes | None:
        if not isinstance(raw, list):
            return None
        shapes = []
        room = _MAX_SHAPE_NUMBERS
        for shape in raw:
            # A version that records a single tensor flat, or a number as text, is still readable.
            numbers = shape if isinstance(shape, list) else [shape]
            room -= len(numbers) + 1
            if room < 0:
                return None
            shapes.append(tuple(_integer(number) or 0 for number in numbers))
        key = tuple(shapes)
        return self._shapes.setdefault(key, key)

    def _stack(self, raw: Any) -> tuple[Frame, ...]:
        if not isinstance(raw, list) or not raw:
            return ()
        stack = tuple(self._frame(frame) for frame in raw[:_MAX_FRAMES] if isinstance(frame, dict))
        return self._stacks.setdefault(stack, stack)

    def _frame(self, raw: dict[Any, Any]) -> Frame:
        # Torch writes each distinct frame once and refers to it: the object is the frame.
        known = self._frames.get(id(raw))
        if known is None:
            known = (_text(raw.get("filename")), _integer(raw.get("line")) or 0, _text(raw.get("name")))
            self._frames[id(raw)] = known
        return known


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


def _config(raw: Any) -> Iterator[GroupConfig]:
    if not isinstance(raw, dict):
        return
    for key, value in list(raw.items())[:100_000]:
        if isinstance(value, dict):
            yield GroupConfig(_text(value.get("name", key)), _text(value.get("desc")), _ranks(value.get("ranks")))


def _ranks(raw: Any) -> tuple[int, ...] | None:
    """`"[0, 1, 2]"` or a list; None if it lists nobody or something else."""
    if isinstance(raw, str):
        words = raw.strip().strip("[]").split(",")
        raw = [word.strip() for word in words if word.strip()]
    if not isinstance(raw, list):
        return None
    numbers = [_integer(word) for word in raw]
    ranks = tuple(number for number in numbers if number is not None)
    return ranks if ranks and len(ranks) == len(numbers) else None


def _status(raw: Any) -> Iterator[tuple[str, GroupStatus]]:
    if not isinstance(raw, dict):
        return
    for pg_id, value in list(raw.items())[:100_000]:
        if isinstance(value, dict):
            enqueued = _integer(value.get("last_enqueued_collective"))
            completed = _integer(value.get("last_completed_collective"))
            yield (
                _text(pg_id),
                GroupStatus(
                    None if enqueued is None else max(enqueued, 0),
                    None if completed is None else max(completed, 0),
                ),
            )


def _pair(raw: Any) -> tuple[str, str]:
    if isinstance(raw, tuple | list) and len(raw) == 2:
        return _text(raw[0]), _text(raw[1])
    return _text(raw), ""


def _integer(raw: Any) -> int | None:
    """A 64-bit integer, also from text; None for anything else."""
    if type(raw) is str and len(raw) <= 20:
        try:
            raw = int(raw)
        except ValueError:
            return None
    return raw if type(raw) is int and -(1 << 63) <= raw < 1 << 63 else None


def _text(raw: Any) -> str:
    if type(raw) is str:
        return raw if len(raw) <= _TEXT_LIMIT else raw[:_TEXT_LIMIT]
    return str(raw) if type(raw) is int and raw.bit_length() < 64 else ""


def _texts(raw: Any) -> tuple[str, ...]:
    if not isinstance(raw, list):
        return ()
    return tuple(_text(item) for item in raw[:_MAX_SHAPE_NUMBERS])
