"""Reads PyTorch flight records into one form: pickle or JSON, format versions 2.1 to 2.11 and later.

Source of the format: torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorderDetail.hpp (2.8 to
2.15), before that TraceUtils.h and NCCLUtils.hpp (2.4 to 2.7). The JSON form has no frames, writes 0 for unknown times
and `pg_status` numbers as strings, and omits `entries` if there are none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ddx_tools.knowledge.recorded_calls import integer, text
from ddx_tools.model.errors import UnreadableInput
from ddx_tools.parsers.flight_records.fr_entries import EntryColumns, read_entries
from ddx_tools.parsers.flight_records.fr_pickle import MAX_BYTES, load

_MAX_ENTRIES = 500_000
"""In torch's encoding, no more entries fit into `MAX_BYTES`."""
_MAX_GROUPS = 100_000
_MAX_MEMBER_CHARACTERS = 8 << 20
"""The maximum text size of one dump's member lists: a rank in ten groups of 100,000 has 7 MB of them."""
_MOST_CHARACTERS_CACHED = 1 << 17
_HELP = (
    "A flight record is what torch writes with TORCH_NCCL_DUMP_ON_TIMEOUT, through the debug pipe, or what "
    "`ddx run` collects: a pickle or JSON with `version` and `entries`."
)


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """`pg_status` of one process group: sequence numbers; the recorder's -1 ("none yet") is 0 here."""

    last_enqueued: int | None
    last_started: int | None
    last_completed: int | None


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """`pg_config` of one process group. `ranks` is None if the recorder lists none (Gloo's sub-groups)."""

    name: str
    description: str
    ranks: tuple[int, ...] | None


@dataclass(frozen=True)
class FrDump:
    """One dump: the contents of one recorder of one process."""

    encoding: str
    """`pickle` or `json`."""
    version: str
    library: str
    """The recorded version of NCCL or a similar library; empty for Gloo."""
    entries: EntryColumns
    config: tuple[GroupConfig, ...]
    status: Mapping[str, GroupStatus]
    """Keyed by pg_id, a counter in the process: not the group's name, and not comparable between ranks."""
    left_out: tuple[str, ...] = ()
    """Lines that say what exceeded the limits for one dump."""

    @property
    def with_frames(self) -> bool:
        """Whether any entry has Python frames."""
        return any(self.entries.sites)

    @property
    def backend(self) -> str | None:
        """The backend named by the newest call."""
        return next((call.backend for call in reversed(self.entries.calls) if call.backend), None)


def read_dump(data: bytes) -> FrDump:
    """Read a dump from its bytes, pickle or JSON. Raises `UnreadableInput` with the reason; runs no code.

    For what a hostile pickle can do to the process, see fr_pickle.py.
    """
    if not data:
        raise UnreadableInput("the file is empty (0 bytes): the process died before it wrote its record", _HELP)
    if data[:1] == b"\x80":
        return _dump(load(data), "pickle")
    if data[:4] == b"PK\x03\x04":
        raise UnreadableInput("this is a zip archive, such as a torch checkpoint, not a flight record", _HELP)
    if data.lstrip()[:1] != b"{":
        raise UnreadableInput("this is neither a pickle nor a JSON object", _HELP)
    if len(data) > MAX_BYTES:
        raise UnreadableInput(f"JSON of {len(data)} bytes is larger than the limit of {MAX_BYTES}")
    try:
        return _dump(json.loads(data), "json")
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(f"damaged or truncated JSON: {str(error)[:200]}", _HELP) from None


def _dump(top: Any, encoding: str) -> FrDump:
    if not isinstance(top, dict):
        raise UnreadableInput(f"the record is a {type(top).__name__}, not a dictionary", _HELP)
    if not {"entries", "pg_config", "pg_status"} & top.keys():
        raise UnreadableInput("none of the keys entries, pg_config, pg_status: not a flight record", _HELP)
    entries = top.get("entries") or []
    if not isinstance(entries, list):
        raise UnreadableInput("`entries` is not a list", _HELP)
    if len(entries) > _MAX_ENTRIES:
        raise UnreadableInput(f"more than {_MAX_ENTRIES} entries, which no flight record has")
    config, left_out = _config(top.get("pg_config"))
    return FrDump(
        encoding=encoding,
        version=text(top.get("version")),
        library=text(top.get("comm_lib_version")) or text(top.get("nccl_version")),
        entries=read_entries([entry for entry in entries if isinstance(entry, dict)]),
        config=config,
        status=dict(_status(top.get("pg_status"))),
        left_out=left_out,
    )


def _config(raw: Any) -> tuple[tuple[GroupConfig, ...], tuple[str, ...]]:
    """The groups, and lines that say what was left out."""
    if not isinstance(raw, dict):
        return (), ()
    room = _MAX_MEMBER_CHARACTERS
    groups, without_members = [], 0
    for key, value in list(raw.items())[:_MAX_GROUPS]:
        if isinstance(value, dict):
            ranks = value.get("ranks")
            # Many groups can share one text.
            room -= len(ranks) if isinstance(ranks, str | list) else 0
            without_members += room < 0
            groups.append(
                GroupConfig(text(value.get("name", key)), text(value.get("desc")), _ranks(ranks) if room >= 0 else None)
            )
    left_out = []
    if len(raw) > _MAX_GROUPS:
        left_out.append(f"it lists {len(raw):,} process groups; those after the first {_MAX_GROUPS:,} are left out")
    if without_members:
        left_out.append(
            f"the members of {without_members:,} of its {len(groups):,} process groups are left out: they exceed "
            f"{_MAX_MEMBER_CHARACTERS >> 20} MiB"
        )
    return tuple(groups), tuple(left_out)


def _ranks(raw: Any) -> tuple[int, ...] | None:
    """The ranks in `"[0, 1, 2]"` or a list; None if it is empty or something else."""
    if isinstance(raw, str):
        return _known_ranks(raw) if len(raw) <= _MOST_CHARACTERS_CACHED else _listed_ranks(raw)
    if not isinstance(raw, list):
        return None
    numbers = [integer(word) for word in raw]
    ranks = tuple(number for number in numbers if number is not None)
    return ranks if ranks and len(ranks) == len(numbers) else None


def _listed_ranks(text_of_list: str) -> tuple[int, ...] | None:
    words = text_of_list.strip().strip("[]").split(",")
    return _ranks([word.strip() for word in words if word.strip()])


@lru_cache(256)
def _known_ranks(text_of_list: str) -> tuple[int, ...] | None:
    """The parsed list, cached: thousands of ranks repeat the same long lists."""
    return _listed_ranks(text_of_list)


def _status(raw: Any) -> Iterator[tuple[str, GroupStatus]]:
    if not isinstance(raw, dict):
        return
    for pg_id, value in list(raw.items())[:_MAX_GROUPS]:
        if isinstance(value, dict):
            yield (text(pg_id), GroupStatus(*(_counter(value.get(f"last_{step}_collective")) for step in _STEPS)))


_STEPS = ("enqueued", "started", "completed")


def _counter(raw: Any) -> int | None:
    value = integer(raw)
    return None if value is None else max(value, 0)
