"""The raw items of captured flight records, and their conversion to rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.model.files.rank_names import facts_of_name
from ddx_tools.parsers.flight_records.fr_origin import DumpOrigin, RankPattern, origin_of_header
from ddx_tools.probes.flight_recorder.decode import DumpMaterial
from ddx_tools.probes.flight_recorder.decode_all import decode_all
from ddx_tools.probes.flight_recorder.entry_rows import EntryRows
from ddx_tools.probes.flight_recorder.side_cars import SideCars
from ddx_tools.probes.flight_recorder.tables import RecordTables
from ddx_tools.sources.raw import Batches, Raw, RawItem

DUMP = "dump"
"""A record. Facts: `origin`; `path` of a file; `header` of an agent; `rank`, `taken_ns`, `written_ns` if known."""
HEADER = "header"
"""A side-car JSON file about a record. Facts: `path`."""

_ROWS_AT_ONCE = 122_880
"""The size of a DuckDB row group (1.5): smaller batches are copied again."""
_EXCEPTION_LABEL = ".exception."


def record_rows(raw: Raw, meanwhile: Callable[[], None] | None = None) -> Batches:
    """Yield the rows of all records of a capture as they are decoded. Unreadable input becomes a line in
    `raw.problems`.

    `meanwhile` runs while other processes decode, if there is enough to decode.
    """
    headers = SideCars()
    for path, data in _headers(raw):
        if wrong := headers.add(path, data):
            raw.problems.append(f"{path}: {wrong}")
    materials = (_material(item, headers) for item in raw.of(DUMP))
    together = RecordTables()
    for decoded in decode_all(materials, meanwhile):
        raw.problems += decoded.problems
        if decoded.damaged:
            raw.status = ProbeStatus.PARTIAL
        together.add_all(decoded.tables)
        if len(together.entries) >= _ROWS_AT_ONCE:
            yield from together.entry_batches()
            together.entries = EntryRows()
    yield from together.batches()


def _headers(raw: Raw) -> Iterator[tuple[str, bytes]]:
    """The path and bytes of each side-car, one after the other: for thousands of ranks they are as large as the
    records."""
    for item in raw.of(HEADER):
        path = str(item.facts["path"])
        try:
            yield path, item.data if item.file is None else Path(item.file).read_bytes()
        except OSError as error:
            raw.problems.append(f"{path}: {error.strerror or error}")


def _material(item: RawItem, headers: SideCars) -> DumpMaterial:
    return DumpMaterial(
        name=str(item.facts.get("path") or item.source),
        origin=_origin(item, headers),
        data=item.data,
        file=item.file,
        not_before_ns=item.facts.get("started_ns"),
    )


def _origin(item: RawItem, headers: SideCars) -> DumpOrigin:
    path = item.facts.get("path")
    header = item.facts.get("header")
    kind = str(item.facts["origin"])
    said = headers.of(str(path)) if path and header is None else None
    pattern = item.facts.get("rank_pattern")
    facts = _pattern(pattern).facts if pattern else facts_of_name
    named = facts(str(path)) if path else None
    if header is not None:
        origin = origin_of_header(header, item.source, kind)
    elif said is not None:
        is_last_word = _EXCEPTION_LABEL in str(path).rsplit("/", 1)[-1]
        origin = replace(said, source=item.source, origin="exception" if is_last_word else kind)
    else:
        origin = DumpOrigin(item.source, kind, named.rank if named else None, named.host if named else None)
    for known in ("rank", "host", "taken_ns", "written_ns"):
        if item.facts.get(known) is not None:
            origin = replace(origin, **{known: item.facts[known]})
    return replace(origin, only_active=item.facts.get("only_active"), attempt=named.attempt if named else None)


@lru_cache(4)
def _pattern(text: str) -> RankPattern:
    return RankPattern.parse(text)
