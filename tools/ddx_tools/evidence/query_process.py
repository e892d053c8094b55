"""The process that runs a single query over an evidence file: started for it, limited, and discarded.

The author of the query may be a manipulated agent. So the file is opened read-only, without access to other files,
the network or settings. A single SQL function can still run or grow for ever without checking for cancellation, and
only ending the process stops that.

Reads `{"file", "sql", "most_rows", "most_bytes", "most_cell_chars", "cpu_s", "memory_bytes"}` from standard input and
answers `{"columns": [...], "rows": [[...]], "more": bool}` or `{"error": text}`.
"""

import json
import math
import resource
import sys
from decimal import Decimal
from typing import Any

_ENGINE_SHARE = 4
"""The database engine may use 1/4 of the memory that the process may map."""
_READING = {"SELECT", "EXPLAIN"}  # DESCRIBE, SHOW, SUMMARIZE and VALUES count as SELECT


def main() -> None:
    """Read one request from standard input and print its answer."""
    request = json.load(sys.stdin)
    _limit(resource.RLIMIT_CPU, request["cpu_s"])
    _limit(resource.RLIMIT_AS, request["memory_bytes"])
    _limit(resource.RLIMIT_CORE, 0)
    json.dump(_answer(request), sys.stdout)


def _limit(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    import duckdb

    try:
        return _rows(duckdb, request)
    except MemoryError:
        return {"error": "out of memory: aggregate, or ask for fewer rows and columns"}
    except duckdb.Error as error:
        return {"error": str(error)}


def _rows(duckdb: Any, request: dict[str, Any]) -> dict[str, Any]:
    db = duckdb.connect(request["file"], read_only=True, config={"threads": 2, "temp_directory": ""})
    db.execute(f"SET memory_limit = '{request['memory_bytes'] // _ENGINE_SHARE >> 20}MiB'")
    for setting in ("python_enable_replacements", "autoload_known_extensions", "enable_external_access"):
        db.execute(f"SET {setting} = false")
    db.execute("SET TimeZone = 'UTC'")
    db.execute("SET lock_configuration = true")
    statements = duckdb.extract_statements(request["sql"])
    if len(statements) != 1:
        return {"error": f"{len(statements)} statements: send one at a time"}
    if statements[0].type.name not in _READING:
        return {
            "error": f"{statements[0].type.name}: only SELECT, WITH, DESCRIBE, SHOW, SUMMARIZE and EXPLAIN are allowed"
        }
    cursor = db.execute(statements[0])
    columns = [column[0] for column in cursor.description or []]
    if zoned := [column[0] for column in cursor.description or [] if "WITH TIME ZONE" in str(column[1])]:
        # The engine's Python objects for them need a package that is not installed.
        return {"error": f"{', '.join(zoned)}: times with a zone are not shown; add ::TIMESTAMP (it is UTC)"}
    rows: list[list[Any]] = []
    room = request["most_bytes"]
    while row := cursor.fetchone():
        shown = [_cell(value, request["most_cell_chars"]) for value in row]
        room -= len(json.dumps(shown))
        if len(rows) == request["most_rows"] or room < 0:
            return {"columns": columns, "rows": rows, "more": True}
        rows.append(shown)
    return {"columns": columns, "rows": rows, "more": False}


def _cell(value: Any, most_chars: int) -> Any:
    """Convert a value to JSON: anything other than a number, text or list becomes text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if (
        isinstance(value, list)
        and len(value) <= most_chars
        and all(item is None or type(item) is int for item in value)
    ):
        return value
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= most_chars else text[: most_chars - 1] + "…"


if __name__ == "__main__":
    main()
