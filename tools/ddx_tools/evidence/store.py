"""The evidence store, which holds the parsed rows of a bundle in DuckDB.

Rows are inserted as dictionaries per table or as Arrow tables, and queries return dictionaries. The schema is
`schema.sql`, whose comments become column comments.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache, cached_property
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ddx_tools.evidence.schema import all_fit, arrow_array, arrow_table, arrow_types, column_comments, schema

if TYPE_CHECKING:
    from pathlib import Path

    from duckdb import DuckDBPyConnection


T = TypeVar("T")
_FEW = 64
"""Up to this many rows are inserted as parameters of one statement, which takes 40 µs per row."""
_SMALL = 10_000
"""Up to this many rows in total, optimising a query takes longer than running any plan."""
_OPENING = Lock()
_NUMBERS = count(1)


@cache
def _empty_tables() -> DuckDBPyConnection:
    """A database with the schema's empty tables: copying them takes a tenth of the time of creating them."""
    import duckdb

    # For a few rows, handing work to other threads takes longer than doing it.
    db = duckdb.connect(":memory:", config={"threads": 1})
    db.execute(schema().sql)
    # DuckDB prints to stderr about connections that are still open when the interpreter shuts down.
    atexit.register(_empty_tables.cache_clear)
    return db


class Store:
    """An in-memory database with the rows of one bundle."""

    def __init__(self) -> None:
        self._name = f"store_{next(_NUMBERS)}"
        self._described = False
        self._filled: set[str] = set()
        self._rows = 0
        self._derived: dict[Callable[[Store], Any], Any] = {}

    @cached_property
    def _db(self) -> DuckDBPyConnection:
        """The connection, opened with the first rows."""
        with _OPENING:
            db = _empty_tables().cursor()
        db.execute(f"ATTACH ':memory:' AS {self._name}; COPY FROM DATABASE memory TO {self._name} (SCHEMA)")
        db.execute(f"USE {self._name}; PRAGMA disable_optimizer")
        return db

    def insert(self, rows: dict[str, list[dict[str, Any]]] | Iterable[tuple[str, Any]]) -> None:
        """Insert rows into their tables. A column that is not in the schema is a programming error (KeyError)."""
        self._derived.clear()
        for table, batch in rows.items() if isinstance(rows, dict) else rows:
            if not len(batch):
                continue
            self._filled.add(table)
            self._count(len(batch))
            # In tables with a primary key, the first row with a key counts.
            into = f"INSERT OR IGNORE INTO {table}" if table in schema().keyed else f"INSERT INTO {table}"
            if not isinstance(batch, list):
                self._insert(into, batch)
            elif not self._insert_few(into, table, batch):
                self._insert(into, arrow_table(table, batch))

    def _count(self, rows: int) -> None:
        was_small = self._rows <= _SMALL
        self._rows += rows
        if was_small and self._rows > _SMALL:
            self._db.execute("PRAGMA enable_optimizer; RESET threads")

    def holds_any(self, tables: Collection[str]) -> bool:
        """Whether any of these tables has rows; True if none is named."""
        return not tables or not self._filled.isdisjoint(tables)

    def replace(self, table: str, columns: dict[str, str], rows: list[list[Any]]) -> None:
        """Create or replace a temporary table for an analysis, from columns with their SQL types and rows."""
        described = ", ".join(f"{name} {sql_type}" for name, sql_type in columns.items())
        self._db.execute(f"CREATE OR REPLACE TEMP TABLE {table} ({described})")
        if rows:
            import pyarrow as pa

            types = arrow_types()
            arrays = {
                name: arrow_array([row[at] for row in rows], types[sql_type])
                for at, (name, sql_type) in enumerate(columns.items())
            }
            self._insert(f"INSERT INTO {table}", pa.table(arrays))

    def execute(self, sql: str) -> None:
        """Execute a statement of an analysis, such as for temporary tables and views."""
        self._db.execute(sql)

    def _insert_few(self, into: str, table: str, dicts: list[dict[str, Any]]) -> bool:
        """Insert rows without Arrow, to spare small cases its import. Returns False if that is impossible."""
        import duckdb

        names = list(dict.fromkeys(name for row in dicts for name in row))
        if len(dicts) > _FEW or not all_fit(table, dicts):
            return False
        places = ", ".join(f"({', '.join('?' * len(names))})" for _ in dicts)
        values = [row.get(name) for row in dicts for name in names]
        try:
            self._db.execute(f"{into} ({', '.join(names)}) VALUES {places}", values)
        except (duckdb.Error, UnicodeEncodeError):  # a value that no column can hold
            return False
        return True

    def _insert(self, into: str, batch: Any) -> None:
        self._db.register("incoming", batch)
        self._db.execute(f"{into} BY NAME SELECT * FROM incoming")
        self._db.unregister("incoming")

    def query(self, sql: str, parameters: list[Any] | None = None) -> list[dict[str, Any]]:
        """Run a query and return its rows as dictionaries, in the query's order."""
        cursor = self._db.execute(sql, parameters or [])
        names = [column[0] for column in cursor.description or []]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def batches(self, sql: str, most: int = 10_000) -> Iterator[list[tuple[Any, ...]]]:
        """Run a query and yield its rows as tuples in batches. No other query may run before the last batch."""
        cursor = self._db.execute(sql)
        while rows := cursor.fetchmany(most):
            yield rows

    def derived(self, make: Callable[[Store], T]) -> T:
        """The result of `make` for this store, cached until rows are added."""
        if make not in self._derived:
            self._derived[make] = make(self)
        return cast(T, self._derived[make])

    def save(self, file: Path) -> None:
        """Write the tables with their comments to a new DuckDB file, without an analysis's temporary tables."""
        self.describe()
        quoted = str(file).replace("'", "''")
        to = f"{self._name}_saved"
        self._db.execute(f"ATTACH '{quoted}' AS {to}; COPY FROM DATABASE {self._name} TO {to}; DETACH {to}")

    def describe(self) -> None:
        """Attach the column comments, which takes a tenth of a second; only needed if someone reads them."""
        if not self._described:
            self._db.execute(column_comments())
            self._described = True

    def close(self) -> None:
        """Detach the database, which frees its memory."""
        if "_db" in vars(self):
            self._db.execute(f"USE memory; DETACH {self._name}")
            self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
