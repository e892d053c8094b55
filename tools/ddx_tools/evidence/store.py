"""The evidence store: the parsed rows of a bundle, in DuckDB.

Rows arrive as dictionaries by table or as Arrow tables, and leave as dictionaries of a query. The schema is
`schema.sql`, whose comments become those of the columns.
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
"""So many rows go in as parameters of one statement, which takes 40 µs a row."""
_SMALL = 10_000
"""Up to so many rows in all, to look for the best plan of a query takes longer than any plan."""
_OPENING = Lock()
_NUMBERS = count(1)


@cache
def _empty_tables() -> DuckDBPyConnection:
    """The tables of the schema without a row: to copy them takes a tenth of the time that it takes to make them."""
    import duckdb

    db = duckdb.connect(":memory:")
    db.execute(schema().sql)
    # DuckDB tells on stderr of what still stands when the interpreter takes its modules apart.
    atexit.register(_empty_tables.cache_clear)
    return db


class Store:
    """One bundle's rows, in memory."""

    def __init__(self) -> None:
        self._name = f"store_{next(_NUMBERS)}"
        self._described = False
        self._filled: set[str] = set()
        self._rows = 0
        self._derived: dict[Callable[[Store], Any], Any] = {}

    @cached_property
    def _db(self) -> DuckDBPyConnection:
        """Opened with the first rows: until then others may be at work on them."""
        with _OPENING:
            db = _empty_tables().cursor()
        db.execute(f"ATTACH ':memory:' AS {self._name}; COPY FROM DATABASE memory TO {self._name} (SCHEMA)")
        db.execute(f"USE {self._name}; PRAGMA disable_optimizer")
        return db

    def insert(self, rows: dict[str, list[dict[str, Any]]] | Iterable[tuple[str, Any]]) -> None:
        """Add rows to their tables. A column the schema does not know is a programming error (KeyError)."""
        self._derived.clear()
        for table, batch in rows.items() if isinstance(rows, dict) else rows:
            if not len(batch):
                continue
            self._filled.add(table)
            self._count(len(batch))
            # Where rows have an identity, whoever came first has said it all.
            into = f"INSERT OR IGNORE INTO {table}" if table in schema().keyed else f"INSERT INTO {table}"
            if not isinstance(batch, list):
                self._insert(into, batch)
            elif not self._insert_few(into, table, batch):
                self._insert(into, arrow_table(table, batch))

    def _count(self, rows: int) -> None:
        was_small = self._rows <= _SMALL
        self._rows += rows
        if was_small and self._rows > _SMALL:
            self._db.execute("PRAGMA enable_optimizer")

    def holds_any(self, tables: Collection[str]) -> bool:
        """Whether a row was added to one of these tables; True if none is named."""
        return not tables or not self._filled.isdisjoint(tables)

    def replace(self, table: str, columns: dict[str, str], rows: list[list[Any]]) -> None:
        """Make a temporary table for an analysis: columns with their SQL types, and rows."""
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
        """Run a statement of the analysis: temporary tables and views."""
        self._db.execute(sql)

    def _insert_few(self, into: str, table: str, dicts: list[dict[str, Any]]) -> bool:
        """Add rows without Arrow, whose import a small case need not pay for. False if that cannot be done."""
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
        """Rows of a query as dictionaries, in the order that the query asks for."""
        cursor = self._db.execute(sql, parameters or [])
        names = [column[0] for column in cursor.description or []]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def batches(self, sql: str, most: int = 10_000) -> Iterator[list[tuple[Any, ...]]]:
        """Rows of a query as tuples, some at a time, however many they are. Ask nothing else before the last one."""
        cursor = self._db.execute(sql)
        while rows := cursor.fetchmany(most):
            yield rows

    def derived(self, make: Callable[[Store], T]) -> T:
        """What `make` builds from all rows: built once, and again if rows were added."""
        if make not in self._derived:
            self._derived[make] = make(self)
        return cast(T, self._derived[make])

    def save(self, file: Path) -> None:
        """Write the tables with their comments to a new DuckDB file; what an analysis made for itself is left out."""
        self.describe()
        quoted = str(file).replace("'", "''")
        to = f"{self._name}_saved"
        self._db.execute(f"ATTACH '{quoted}' AS {to}; COPY FROM DATABASE {self._name} TO {to}; DETACH {to}")

    def describe(self) -> None:
        """Attach the comments of the columns, which takes a tenth of a second: for those who look at them."""
        if not self._described:
            self._db.execute(column_comments())
            self._described = True

    def close(self) -> None:
        """Free the memory."""
        if "_db" in vars(self):
            self._db.execute(f"USE memory; DETACH {self._name}")
            self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
