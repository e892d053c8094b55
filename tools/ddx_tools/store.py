"""The evidence store: the parsed rows of a bundle, in DuckDB.

Rows arrive as dictionaries by table, leave as dictionaries of a query. The schema is `schema.sql`; the
comment behind each column becomes the column's comment, so that whoever queries can read its meaning and unit.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import Any

from ddx_tools.probe import Rows

_TABLE = re.compile(r"^CREATE TABLE (\w+) \(", re.M)
_COLUMN = re.compile(r"^\s+(\w+)\s+([A-Z]+(?:\[\])?)\s*,?\s*--\s*(.+?)\s*$")


@cache
def _arrow_types() -> dict[str, Any]:
    """Arrow types by SQL type; pyarrow and duckdb are imported where they are used, so that the CLI starts fast."""
    import pyarrow as pa

    return {
        "VARCHAR": pa.string(),
        "INTEGER": pa.int32(),
        "BIGINT": pa.int64(),
        "DOUBLE": pa.float64(),
        "BOOLEAN": pa.bool_(),
        "INTEGER[]": pa.list_(pa.int32()),
    }


def _column(values: list[Any], arrow_type: Any) -> Any:
    """An Arrow array. What no column can hold, and hostile text can bring, becomes � or NULL: the rest is kept."""
    import pyarrow as pa

    try:
        return pa.array(values, type=arrow_type)
    except (UnicodeEncodeError, OverflowError, pa.ArrowInvalid):
        return pa.array([_storable(value, arrow_type) for value in values], type=arrow_type)


def _storable(value: Any, arrow_type: Any) -> Any:
    import pyarrow as pa

    if isinstance(value, str):
        value = value.encode("utf-8", "replace").decode()  # half characters (lone surrogates)
    try:
        pa.scalar(value, type=arrow_type)
    except (OverflowError, pa.ArrowInvalid):
        return None
    return value


@cache
def _schema() -> tuple[str, dict[str, dict[str, tuple[str, str]]]]:
    """The SQL text, and {table: {column: (type, comment)}} read from it."""
    sql = resources.files("ddx_tools").joinpath("schema.sql").read_text(encoding="utf-8")
    tables: dict[str, dict[str, tuple[str, str]]] = {}
    current: dict[str, tuple[str, str]] = {}
    for line in sql.splitlines():
        if head := _TABLE.match(line):
            current = tables.setdefault(head[1], {})
        elif column := _COLUMN.match(line):
            current[column[1]] = (column[2], column[3])
    return sql, tables


@cache
def _comments() -> str:
    """The statements that attach its comment to every column."""
    statements = []
    for table, described in _schema()[1].items():
        for column, (_, comment) in described.items():
            quoted = comment.replace("'", "''")
            statements.append(f"COMMENT ON COLUMN {table}.{column} IS '{quoted}';")
    return "\n".join(statements)


def columns(table: str) -> dict[str, tuple[str, str]]:
    """{column: (SQL type, comment)} of a table."""
    return _schema()[1][table]


def tables() -> list[str]:
    """The tables of the store, in the order of the schema."""
    return list(_schema()[1])


class Store:
    """One bundle's rows, in memory."""

    def __init__(self) -> None:
        import duckdb

        sql, _ = _schema()
        self._db = duckdb.connect(":memory:")
        self._db.execute(sql)
        self._db.execute(_comments())

    def insert(self, rows: Rows) -> None:
        """Add rows to their tables. A column the schema does not know is a programming error (KeyError)."""
        import pyarrow as pa

        types = _arrow_types()
        for table, dicts in rows.items():
            if not dicts:
                continue
            known = columns(table)
            unknown = set().union(*dicts) - set(known)
            if unknown:
                raise KeyError(f"{table} has no column {sorted(unknown)}")
            arrays = {
                name: _column([row.get(name) for row in dicts], types[sql_type])
                for name, (sql_type, _) in known.items()
            }
            self._db.register("incoming", pa.table(arrays))
            self._db.execute(f"INSERT INTO {table} SELECT * FROM incoming")
            self._db.unregister("incoming")

    def query(self, sql: str, parameters: list[Any] | None = None) -> list[dict[str, Any]]:
        """Rows of a query as dictionaries, in the order that the query asks for."""
        cursor = self._db.execute(sql, parameters or [])
        names = [column[0] for column in cursor.description or []]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def close(self) -> None:
        """Free the memory."""
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
