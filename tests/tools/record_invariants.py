"""What holds for a flight record of any bytes: it is refused in words, or every entry of it is a row."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.recorded_calls import Room, call_of, group_of, integer, progress_of, text
from ddx_tools.model.errors import UnreadableInput
from ddx_tools.parsers.flight_records.fr_dump import FrDump, read_dump
from ddx_tools.parsers.flight_records.fr_entries import UNKNOWN, EntryColumns
from ddx_tools.parsers.flight_records.fr_origin import DumpOrigin
from ddx_tools.parsers.flight_records.fr_pickle import load
from ddx_tools.probes.flight_recorder.tables import RecordTables

COUNTERS = ("collective_seq_id", "op_id", "p2p_seq_id", "record_id")
TIMES = ("time_created_ns", "time_discovered_completed_ns", "time_discovered_started_ns")


def listed(columns: EntryColumns) -> list[tuple[Any, ...]]:
    """All that the columns say of each entry."""
    names = ("seq", "op_id", "p2p_seq", "record_id", "created_ns", "completed_ns", "started_ns")
    rest = zip(columns.durations(), columns.kind, columns.site, strict=True)
    found = []
    for *own, (duration_ms, kind, site) in zip(*map(columns.column, names), rest, strict=True):
        shared = columns.kinds[kind]
        parts = columns.groups[shared.group], columns.calls[shared.call], columns.progresses[shared.progress]
        found.append((*own, duration_ms, *map(astuple, parts), columns.sites[site]))
    return found


def one_by_one(entries: list[Any]) -> list[tuple[Any, ...]]:
    """The same of raw entries, each read by itself: nothing is known from the ones before."""
    found = []
    for raw in entries:
        if isinstance(raw, dict):
            numbers = [_unless(UNKNOWN, integer(raw.get(key))) for key in COUNTERS]
            numbers += [_unless(0, integer(raw.get(key))) for key in TIMES]
            took = raw.get("duration_ms")
            duration_ms = float(took) if isinstance(took, int | float) and abs(took) < 1e18 else None
            frames = raw.get("frames")
            path = tuple(
                (text(frame.get("filename")), integer(frame.get("line")) or 0, text(frame.get("name")))
                for frame in (frames[:200] if isinstance(frames, list) else ())
                if isinstance(frame, dict)
            )
            call = astuple(call_of(raw, Room(1 << 60)))
            found.append((*numbers, duration_ms, astuple(group_of(raw)), call, astuple(progress_of(raw)), path))
    return found


def _unless(unknown: int, number: int | None) -> int | None:
    return None if number == unknown else number


def check(data: bytes, store: Store | None = None) -> None:
    """Read a record, and raise AssertionError or whatever escapes if a promise does not hold."""
    try:
        dump = read_dump(data)
    except UnreadableInput as error:
        assert error.message and len(str(error)) < 2000
        return
    if dump.encoding == "pickle":
        assert listed(dump.entries) == one_by_one(load(data).get("entries") or [])
    tables = RecordTables()
    tables.add(dump, DumpOrigin("a file", "file", 3, "a host"))
    assert tables.entries.table().num_rows == len(dump.entries)
    if store is not None:
        _check_stored(store, dump, tables)


def _check_stored(store: Store, dump: FrDump, tables: RecordTables) -> None:
    """Every entry is one row of the view that people query. Leaves the store as it was."""
    store.execute("BEGIN")
    try:
        store.insert(tables.batches())
        (row,) = store.query("SELECT count(*) AS n FROM collectives")
        assert row["n"] == len(dump.entries), "an entry is lost, or there twice"
    finally:
        store.execute("ROLLBACK")
