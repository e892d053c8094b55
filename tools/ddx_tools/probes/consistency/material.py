"""Reads fingerprint files and turns them into rows. payloads/site/ddx_consistency.py defines the format,
`consistency/1`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.model.errors import HostError
from ddx_tools.model.files.names import shown
from ddx_tools.parsers.plain_json import finite, read_object, whole
from ddx_tools.sources.host import Host
from ddx_tools.sources.intake import intake_of
from ddx_tools.sources.kinds import TextKind
from ddx_tools.sources.raw import Batches, Raw, RawItem

_PRINTS = "fingerprints"
_WHY = "What that rank holds is unknown."
_BATCH, _MOST_LINES, _LINE_BYTES = 20_000, 5_000_000, 1 << 20
_NUMBERS = ("norm", "projection", "low", "high")
_COUNTS, _WORDS = ("shape", "local", "coordinate", "ranks"), ("placements", "mesh")
_MOST_CALLS = 20
_MOST_PARTS, _MOST_TIED, _WORD = 1 << 17, 100, 60
_QUOTED = 200
"""How many characters of a line are kept: up to the hash, for a tensor with a name of usual length."""


def read_files(host: Host, raw: Raw, paths: Sequence[str], *, run: int) -> None:
    """Add the fingerprint files among the given files and directories to `raw`; `run` numbers the run they belong
    to."""
    taken = intake_of(host, paths)
    taken.note_gaps(raw, _WHY)
    for material in taken.of(TextKind.FINGERPRINTS):
        try:
            parts = taken.whole(material)
        except HostError as error:
            raw.failed(shown(material.path), error, _WHY)
            continue
        raw.items += [RawItem(_PRINTS, b"", part.source, {"part": part, "run": run}) for part in parts]
    if not raw.items:
        raw.status = ProbeStatus.NO_DATA
    raw.searched.append(f"{len(taken.of(TextKind.FINGERPRINTS))} fingerprint files among {len(taken.materials)}")


def print_rows(raw: Raw) -> Batches:
    """Yield the rows of `fingerprints` in batches, as they are read."""
    for item in raw.of(_PRINTS):
        batch: list[dict[str, Any]] = []
        for row in _rows(item):
            batch.append(row)
            if len(batch) == _BATCH:
                yield "fingerprints", batch
                batch = []
        yield "fingerprints", batch


def _rows(item: RawItem) -> Iterator[dict[str, Any]]:
    head: dict[str, Any] = {}
    with item.facts["part"].open() as stream:
        for number, line in enumerate(iter(lambda: stream.readline(_LINE_BYTES), b""), 1):
            told = read_object(line)
            if number > _MOST_LINES:
                return
            if "ddx" in told:
                head = {
                    "run": item.facts["run"],
                    "rank": whole(told.get("rank")),
                    "world_size": whole(told.get("world_size")),
                    "began_s": finite(told.get("began_s")),
                    "host": str(told.get("host"))[:200],
                }
            elif head and head["rank"] is not None and isinstance(told.get("what"), str):
                yield {
                    **head,
                    "step": whole(told.get("step")),
                    "position": whole(told.get("order")),
                    "what": told.pop("what")[:40],
                    "name": str(told.pop("name", ""))[:300],
                    "hash": str(told.pop("hash", ""))[:40],
                    **{name: finite(told.pop(name, None)) for name in _NUMBERS},
                    "non_finite": whole(told.pop("non_finite", 0)),
                    "facts": json.dumps(_facts(told)),
                    "text": line[: 4 * _QUOTED].decode("utf-8", "replace")[:_QUOTED].rstrip("\r\n"),
                    "source": item.source,
                    "source_line": number,
                }


def _facts(told: dict[str, Any]) -> dict[str, Any]:
    """The line's other fields that have the expected type; the rest is left out."""
    found: dict[str, Any] = {"dtype": str(told.get("dtype", ""))[:_WORD]}
    for name in (*_COUNTS, *_WORDS):
        value, kind = told.get(name), int if name in _COUNTS else str
        if isinstance(value, list) and len(value) <= _MOST_PARTS and all(type(part) is kind for part in value):
            found[name] = [part[:_WORD] for part in value] if kind is str else value
    for name in ("mesh_size", "mesh_id", "broadcast_buffers", "past_wrapper", "sync"):
        if isinstance(told.get(name), int):
            found[name] = told[name]
    for name in ("step_at", "forward"):
        if place := _place(told.get(name)):
            found[name] = place
    if isinstance(told.get("reductions"), list):
        said = [each for each in told["reductions"][:_MOST_CALLS] if isinstance(each, dict) and _place(each.get("at"))]
        found["reductions"] = [{"op": str(each.get("op"))[:_WORD], "at": _place(each["at"])} for each in said]
    if isinstance(states := told.get("states"), dict):
        found["states"] = {str(name)[:_WORD]: str(state)[:_WORD] for name, state in states.items()}
    if isinstance(names := told.get("names"), list):
        tied = [
            [str(name)[:300] for name in each[:_MOST_TIED]] for each in names[:_MOST_TIED] if isinstance(each, list)
        ]
        found["names"] = tied
    return found


def _place(value: Any) -> list[Any] | None:
    """[file, line, function] of a call in the program."""
    if not isinstance(value, list) or [type(part) for part in value] != [str, int, str] or not value[0]:
        return None
    return [value[0][:500], value[1], value[2][:200]]
