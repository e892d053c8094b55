"""Read-only SQL over the evidence of an incident, for untrusted callers."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ddx_tools.model.errors import DdxError, TimedOut, UsageError
from ddx_tools.model.own_python import python_argv

_PROCESS = Path(__file__).with_name("query_process.py")
_LONGEST_SQL = 20_000
_MEMORY_BYTES = 4 << 30
_POLL_S = 0.2
_NOT_STARTED = re.compile(r"^(?:ImportError|ModuleNotFoundError): ", re.MULTILINE)


@dataclass(frozen=True)
class QueryLimits:
    """Limits on the time and the output of one query."""

    time_s: float = 10.0
    most_rows: int = 200
    most_bytes: int = 64 << 10
    most_cell_chars: int = 500


@dataclass(frozen=True)
class QueryRows:
    """The answer to a query: columns, rows, and whether there are more rows."""

    columns: list[str]
    rows: list[list[Any]]
    """JSON-compatible values, cut to the limits."""
    more: bool
    """Whether further rows were left out."""


def query_evidence(
    rows_file: Path, sql: str, limits: QueryLimits = QueryLimits(), wait: Callable[[], None] = lambda: None
) -> QueryRows:
    """Run one read-only SQL statement over a file saved by `Store.save`.

    `wait` is called several times a second and may raise to cancel. Raises UsageError if the statement is invalid or
    fails, TimedOut if it does not finish.
    """
    if len(sql) > _LONGEST_SQL:
        raise UsageError(f"the query has {len(sql)} characters", f"At most {_LONGEST_SQL} are accepted.")
    request = {
        "file": str(rows_file),
        "sql": sql,
        **asdict(limits),
        "cpu_s": 2 * int(limits.time_s) + 1,  # it may use two threads
        "memory_bytes": _MEMORY_BYTES,
    }
    answer = json.loads(_asked(json.dumps(request), limits.time_s, wait) or '{"error": "out of time or memory"}')
    if error := answer.get("error"):
        raise _explained(error)
    return QueryRows(answer["columns"], answer["rows"], answer["more"])


def _asked(request: str, time_s: float, wait: Callable[[], None]) -> str:
    """Send a request to the query process and return its answer; empty if it was ended by one of its limits."""
    until = time.monotonic() + time_s
    command = python_argv(f"import runpy; runpy.run_path({str(_PROCESS)!r}, run_name='__main__')")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            given: str | None = request
            while True:
                try:
                    answer, printed = process.communicate(given, timeout=_POLL_S)
                    if not answer and _NOT_STARTED.search(printed):
                        raise DdxError("the query process did not start: " + printed.strip()[-200:])
                    return answer
                except subprocess.TimeoutExpired:
                    given = None  # the process already has the request
                wait()
                if time.monotonic() > until:
                    raise TimedOut(
                        f"the query did not end within {time_s:g} s",
                        "Filter and aggregate more: one table, one rank, a WHERE before a JOIN.",
                    )
        finally:
            process.kill()


def _explained(error: str) -> DdxError:
    lines = [line for line in error.splitlines() if line.strip()]
    return UsageError(
        "\n".join(lines[:4])[:700] or "the query failed",
        "Tables: SHOW TABLES. Columns with their meaning: SELECT column_name, data_type, comment FROM duckdb_columns() "
        "WHERE table_name = '…'.",
    )
