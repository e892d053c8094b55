"""The evidence store: the parsed rows of a bundle, in DuckDB.

Rows arrive as dictionaries by table or as Arrow tables, and leave as dictionaries of a query. The schema is
`schema.sql`, whose comments become those of the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ddx_tools.schema import arrow_array, arrow_table, arrow_types, column_comments, schema

if TYPE_CHECKING:
    from pathlib import Path

    from duckdb import DuckDBPyConnection

    from ddx_tools.probe import Batches, Rows

T = TypeVar("T")


class Store:
    """One bundle's rows, in memory."""

    def __init__(self) -> None:
        self._described = False
        self._derived: dict[Callable[[Store], Any], Any] = {}

    @cached_property
    def _db(self) -> DuckDBPyConnection:
        """Opened with the first rows: until then others may be at work on them."""
        import duckdb

        db = duckdb.connect(":memory:")
        db.execute(schema().sql)
        return db

    def insert(self, rows: Rows | Batches) -> None:
        """Add rows to their tables. A column the schema does not know is a programming error (KeyError)."""
        self._derived.clear()
        if isinstance(rows, dict):
            rows = ((table, arrow_table(table, dicts)) for table, dicts in rows.items() if dicts)
        for table, batch in rows:
            # Where rows have an identity, whoever came first has said it all.
            how = "INSERT OR IGNORE INTO" if table in schema().keyed else "INSERT INTO"
            self._insert(f"{how} {table}", batch)

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
        """What `make` builds out of all rows: built once, and again if rows were added."""
        if make not in self._derived:
            self._derived[make] = make(self)
        return cast(T, self._derived[make])

    def save(self, file: Path) -> None:
        """Write the tables with their comments to a new DuckDB file; what an analysis made for itself is left out."""
        self.describe()
        quoted = str(file).replace("'", "''")
        self._db.execute(f"ATTACH '{quoted}' AS saved; COPY FROM DATABASE memory TO saved; DETACH saved")

    def describe(self) -> None:
        """Attach the comments of the columns, which takes a tenth of a second: for those who look at them."""
        if not self._described:
            self._db.execute(column_comments())
            self._described = True

    def close(self) -> None:
        """Free the memory."""
        if "_db" in vars(self):
            self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
