"""The tables of the evidence store as `schema.sql` defines them, and conversion of rows to Arrow tables.

The comment after each column is its documentation, from which users of queries learn its meaning and unit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

_TABLE = re.compile(r"^CREATE TABLE (\w+) \(", re.M)
_COLUMN = re.compile(r"^\s+(\w+)\s+([A-Z]+(?:\[\])?)( PRIMARY KEY)?\s*,?\s*--\s*(.+?)\s*$")


@cache
def arrow_types() -> dict[str, Any]:
    """Arrow type per SQL type. pyarrow and duckdb are imported where they are used, so that the CLI starts fast."""
    import pyarrow as pa

    return {
        "VARCHAR": pa.string(),
        "INTEGER": pa.int32(),
        "BIGINT": pa.int64(),
        "DOUBLE": pa.float64(),
        "BOOLEAN": pa.bool_(),
        "INTEGER[]": pa.list_(pa.int32()),
    }


def arrow_array(values: list[Any], arrow_type: Any) -> Any:
    """Build an Arrow array. Values that no column can hold, as in hostile text, become � or NULL; the rest is kept."""
    import pyarrow as pa

    try:
        return pa.array(values, type=arrow_type)
    except (UnicodeEncodeError, OverflowError, pa.ArrowInvalid):
        return pa.array([_storable(value, arrow_type) for value in values], type=arrow_type)


def _storable(value: Any, arrow_type: Any) -> Any:
    import pyarrow as pa

    if isinstance(value, str):
        value = value.encode("utf-8", "replace").decode()  # lone surrogates
    try:
        pa.scalar(value, type=arrow_type)
    except (OverflowError, pa.ArrowInvalid):
        return None
    return value


@dataclass(frozen=True)
class Schema:
    """The parsed schema: SQL statements, tables with their columns, and tables with a primary key."""

    sql: str
    tables: dict[str, dict[str, tuple[str, str]]]
    """{table: {column: (type, comment)}}"""
    keyed: frozenset[str]
    """Tables with a primary key: of rows with the same key, the first is kept."""


@cache
def schema() -> Schema:
    """Load and parse `schema.sql`."""
    sql = resources.files("ddx_tools").joinpath("evidence/schema.sql").read_text(encoding="utf-8")
    tables: dict[str, dict[str, tuple[str, str]]] = {}
    keyed: set[str] = set()
    current: dict[str, tuple[str, str]] = {}
    for line in sql.splitlines():
        if head := _TABLE.match(line):
            current = tables.setdefault(head[1], {})
        elif column := _COLUMN.match(line):
            current[column[1]] = (column[2], column[4])
            if column[3]:
                keyed.add(next(reversed(tables)))
    return Schema(sql, tables, frozenset(keyed))


@cache
def column_comments() -> str:
    """SQL statements that attach the comments to all columns."""
    statements = []
    for table, described in schema().tables.items():
        for column, (_, comment) in described.items():
            quoted = comment.replace("'", "''")
            statements.append(f"COMMENT ON COLUMN {table}.{column} IS '{quoted}';")
    return "\n".join(statements)


def arrow_table(table: str, dicts: list[dict[str, Any]]) -> Any:
    """Convert rows to an Arrow table with all columns of the schema. Raises KeyError for an unknown column."""
    import pyarrow as pa

    types = arrow_types()
    known = columns(table)
    unknown = set().union(*dicts) - set(known)
    if unknown:
        raise KeyError(f"{table} has no column {sorted(unknown)}")
    return pa.table(
        {name: arrow_array([row.get(name) for row in dicts], types[sql_type]) for name, (sql_type, _) in known.items()}
    )


_PYTHON_TYPES = {"VARCHAR": str, "INTEGER": int, "BIGINT": int, "DOUBLE": float, "BOOLEAN": bool, "INTEGER[]": list}


def all_fit(table: str, dicts: list[dict[str, Any]]) -> bool:
    """Whether each value already has its column's type, so that inserting converts nothing."""
    known = columns(table)
    return all(
        value is None or (name in known and type(value) is _PYTHON_TYPES[known[name][0]])
        for row in dicts
        for name, value in row.items()
    )


def columns(table: str) -> dict[str, tuple[str, str]]:
    """The columns of a table, as `{column: (SQL type, comment)}`."""
    return schema().tables[table]


def as_row(table: str, *things: object, **told: Any) -> dict[str, Any]:
    """Build a row of a table from explicit values and from attributes of objects.

    Each column takes the keyword argument of its name, else the attribute of that name from the first object that has
    it. Columns with neither are left out.
    """
    alike = (table, *map(type, things), *told)
    if alike not in _HOLDERS:  # cached, so that attributes are not searched for in every row of a log
        holders = {n: next((i for i, one in enumerate(things) if hasattr(one, n)), None) for n in columns(table)}
        _HOLDERS[alike] = [(name, place) for name, place in holders.items() if place is not None and name not in told]
    return {name: getattr(things[place], name) for name, place in _HOLDERS[alike]} | told


_HOLDERS: dict[tuple[object, ...], list[tuple[str, int]]] = {}
"""Cache per table, object types and given names: which object has which column."""


def tables() -> list[str]:
    """Names of the store's tables, in schema order."""
    return list(schema().tables)
