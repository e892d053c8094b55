"""Copies what ddx reads of an SQLite export of Nsight Systems, with its texts redacted.

A redacted text has another length, so a database cannot be redacted in place. An export also holds the program's
output, its files and its environment, which ddx does not read: they are left out, with every other table and column.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import lru_cache
from pathlib import Path

from ddx_tools.model.errors import UnreadableInput
from ddx_tools.model.files.nsight_export import (
    CUT,
    DAMAGE,
    STRINGS,
    SYSTEM,
    TABLES,
    guard,
    ids_in_use,
    is_export,
    tables_in,
    uri_of,
)
from ddx_tools.redaction.text import LEFT_OUT, Counts, redact

_TEXTS = frozenset({"text", "value", "name"})
_MOST_LETTERS = 1_000
_MOST_REMEMBERED = 100_000
_MOST_ROWS = 10_000_000
"""Of one table; as many as the reader takes of all."""


def redact_database(data: bytes, counts: Counts | None = None) -> bytes:
    """Return a redacted copy of a database's bytes; if it is no export, a note that it was left out."""
    with tempfile.TemporaryDirectory(prefix="ddx-") as folder:
        source, target = Path(folder) / "source", Path(folder) / "target"
        source.write_bytes(data)
        copy_redacted_database(source, target, counts)
        return target.read_bytes()


def copy_redacted_database(source: Path, target: Path, counts: Counts | None = None) -> None:
    """Write a redacted copy of a database; if it is no export, a note that it was left out. Raises OSError."""
    target.write_bytes(b"")
    try:
        if is_export(source):
            with closing(sqlite3.connect(target, uri=True, isolation_level=None)) as db:
                _copy(db, source, counts)
            return
    except (UnreadableInput, *DAMAGE):
        pass  # damaged before its first table
    target.write_bytes(LEFT_OUT.encode())


def _copy(db: sqlite3.Connection, source: Path, counts: Counts | None) -> None:
    """Copy all tables, each as far as it can be read. Raises sqlite3.Error if none can be."""
    db.execute("PRAGMA journal_mode=MEMORY")
    db.execute("PRAGMA synchronous=OFF")
    guard(db)
    db.execute("ATTACH DATABASE ? AS given", [uri_of(source)])
    clean = lru_cache(_MOST_REMEMBERED)(lambda text: redact(text, counts))
    found = tables_in(db, "given")
    cut = []
    db.execute("BEGIN")
    for table in TABLES:  # texts come last: of them, only those that the copied rows name
        if not (columns := found.get(table)):
            continue
        db.execute(f'CREATE TABLE "{table}" ({_listed(columns)})')
        are_texts = [column in _TEXTS for column in columns]
        rows = db.execute(
            f'SELECT {_listed(columns)} FROM given."{table}" {_where(table, found)} LIMIT {_MOST_ROWS + 1}'
        )
        into = f'INSERT INTO main."{table}" VALUES ({", ".join("?" * len(columns))})'
        try:
            db.executemany(into, (_cleaned(row, are_texts, clean) for row in rows))
        except DAMAGE:
            cut.append((table,))
    if cut:
        db.execute(f'CREATE TABLE IF NOT EXISTS "{CUT}" (name)')
        db.executemany(f'INSERT INTO main."{CUT}" VALUES (?)', cut)
    db.execute("COMMIT")


def _where(table: str, found: dict[str, list[str]]) -> str:
    if table == SYSTEM:
        return "WHERE name = 'Hostname'"
    if table != STRINGS:
        return ""
    used = ids_in_use(found)  # of the copy, whose tables come before those of the attached original
    return f"WHERE id IN ({used})" if used else "WHERE 0"


def _cleaned(row: tuple[object, ...], are_texts: list[bool], clean: Callable[[str], str]) -> list[object]:
    """Numbers, and redacted texts where a text belongs; nothing else."""
    return [
        value if type(value) is int else clean(value[:_MOST_LETTERS]) if is_text and isinstance(value, str) else None
        for value, is_text in zip(row, are_texts, strict=True)
    ]


def _listed(columns: list[str]) -> str:
    return ", ".join(f'"{column}"' for column in columns)
