"""What holds for a flight record of any bytes: it is refused in words, or every entry of it is a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from typing import Any, TypeVar

from ddx_tools.errors import UnreadableInput
from ddx_tools.flight_records.tables import RecordTables
from ddx_tools.formats import fr_pickle
from ddx_tools.formats.fr_dump import FrDump, read_dump
from ddx_tools.formats.fr_entries import EntryColumns, EntryReader
from ddx_tools.formats.fr_origin import DumpOrigin
from ddx_tools.store import Store

T = TypeVar("T")


def listed(columns: EntryColumns) -> list[tuple[Any, ...]]:
    """All that is known of each entry, in an order of its own: templates read in another one."""
    found = []
    numbers = [columns.column(name) for name in sorted(columns.numbers)]
    rest = zip(columns.durations(), columns.kind, columns.site, strict=True)
    for *own, (duration_ms, kind, site) in zip(*numbers, rest, strict=True):
        shared = columns.kinds[kind]
        parts = columns.groups[shared.group], columns.calls[shared.call], columns.progresses[shared.progress]
        found.append((*own, duration_ms, *map(astuple, parts), columns.sites[site]))
    return sorted(found, key=repr)


def interpreted(data: bytes) -> list[tuple[Any, ...]]:
    """The entries of a pickled record, opcode by opcode: no template is used."""
    reader = EntryReader()
    entries = fr_pickle.load(data).get("entries") or []
    reader.add([each for each in entries if isinstance(each, dict)])
    return listed(reader.columns())


def check(data: bytes, store: Store | None = None) -> None:
    """Read a record in all ways, and raise AssertionError or whatever escapes if a promise does not hold."""
    dump = _or_refused(lambda: read_dump(data))
    if dump is None:
        return
    if dump.encoding == "pickle":
        expected = _or_refused(lambda: interpreted(data))
        assert expected is None or listed(dump.entries) == expected, "templates read something else"
    tables = RecordTables()
    tables.add(dump, DumpOrigin("a file", "file", 3, "a host"))
    assert tables.entries.table().num_rows == len(dump.entries)
    if store is not None:
        _check_stored(store, dump, tables)


def _or_refused(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except UnreadableInput as error:
        assert error.message and len(str(error)) < 2000
        return None


def _check_stored(store: Store, dump: FrDump, tables: RecordTables) -> None:
    """Every entry is one row of the view that people query. Leaves the store as it was."""
    store.execute("BEGIN")
    try:
        store.insert(tables.batches())
        (row,) = store.query("SELECT count(*) AS n FROM collectives")
        assert row["n"] == len(dump.entries), "an entry is lost, or there twice"
    finally:
        store.execute("ROLLBACK")
