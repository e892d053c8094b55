"""Opens SQLite exports of Nsight Systems, which may be damaged or hostile: read-only, bounded, and real tables only.

Source: "SQLite Export Schema Reference" and "Common SQLite examples" of the Nsight Systems documentation
(docs.nvidia.com/nsight-systems/2021.5/nsys-exporter/exported_data.html, and the same pages of later releases). Tables
are created only when there is something to put into them, and columns differ between releases: both may be missing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from ddx_tools.model.errors import UnreadableInput

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
RANGES = "NVTX_EVENTS"
STRINGS = "StringIds"
SESSION = "TARGET_INFO_SESSION_START_TIME"
SYSTEM = "TARGET_INFO_SYSTEM_ENV"
CUT = "ddx_cut"
"""In a redacted copy: the tables of which only a part could be read."""
_ON_GPU = ("start", "end", "deviceId", "streamId", "globalPid")
TABLES: dict[str, tuple[str, ...]] = {
    KERNELS: (*_ON_GPU, "demangledName", "shortName"),
    GRAPHS: _ON_GPU,
    **dict.fromkeys(COPIES, _ON_GPU),
    CALLS: ("start", "end", "globalTid", "nameId"),
    RANGES: ("start", "end", "globalTid", "text", "textId"),
    SESSION: ("utcEpochNs",),
    SYSTEM: ("name", "value"),
    STRINGS: ("id", "value"),
    CUT: ("name",),
}
"""The tables that ddx reads, with their columns. `start` and `end` are ns since the begin of the session."""
_NAMED_BY = {KERNELS: ("demangledName", "shortName"), CALLS: ("nameId",), RANGES: ("textId",)}
"""The columns that hold ids of `StringIds`."""
_TELLING = frozenset({KERNELS, CALLS, RANGES, SESSION})
"""Other programs also have tables like `StringIds`."""

DAMAGE = (sqlite3.Error, OverflowError, UnicodeDecodeError)
"""What a damaged database raises. Python fails to decode SQLite's message if it quotes damaged names."""
_MOST_TEXT_BYTES = 16 << 20
_OPERATIONS_AT_ONCE = 1_000_000
_MOST_OPERATIONS = 4_000_000_000
"""Operations of SQLite's virtual machine: 10 million rows of all tables take a tenth."""


@contextmanager
def opened(source: Path | bytes) -> Iterator[sqlite3.Connection]:
    """Open a database, or its bytes, for reading. Raises `UnreadableInput`, also for errors while it is used."""
    try:
        with closing(_connected(source)) as db:
            guard(db)
            db.execute("PRAGMA query_only=ON")
            yield db
    except DAMAGE as error:
        raise UnreadableInput(f"not a readable SQLite database: {reason_of(error)}") from error


def guard(db: sqlite3.Connection) -> None:
    """Bound what a database can make a connection do, and let nothing in its schema run. Raises sqlite3.Error."""
    steps = iter(range(_MOST_OPERATIONS // _OPERATIONS_AT_ONCE))
    db.set_progress_handler(lambda: next(steps, None) is None, _OPERATIONS_AT_ONCE)
    if hasattr(db, "setlimit"):  # Python 3.11; a host without ddx may have an older one
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_TEXT_BYTES)
    db.text_factory = lambda text: text.decode("utf-8", "replace")
    for setting in ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0"):
        db.execute(f"PRAGMA {setting}")


def uri_of(file: Path) -> str:
    """The URI that opens a database read-only, without its journal and without locks."""
    return f"{file.absolute().as_uri()}?mode=ro&immutable=1"


def tables_in(db: sqlite3.Connection, schema: str = "main") -> dict[str, list[str]]:
    """The tables of `TABLES` that a database has, each with those columns that it has. Raises sqlite3.Error.

    Views, virtual tables and generated columns do not count: they run what their author wrote.
    """
    names = ", ".join("?" * len(TABLES))
    real = f"SELECT name FROM {schema}.sqlite_master WHERE type = 'table' AND rootpage > 0 AND name IN ({names})"
    found = {}
    for (name,) in db.execute(real, list(TABLES)).fetchall():
        columns = {row[1] for row in db.execute(f'PRAGMA {schema}.table_info("{name}")')}
        found[name] = [column for column in TABLES[name] if column in columns]
    return found


def ids_in_use(tables: Mapping[str, Sequence[str]]) -> str:
    """A query for the ids of `StringIds` that rows name; `tables` as from `tables_in`. Empty if no column names any."""
    return " UNION ".join(
        f'SELECT "{column}" FROM "{table}"'
        for table, columns in _NAMED_BY.items()
        for column in columns
        if column in tables.get(table, ())
    )


def is_export(source: Path | bytes) -> bool:
    """Whether a database is an export of Nsight Systems. Raises `UnreadableInput` if it cannot be read."""
    with opened(source) as db:
        return not _TELLING.isdisjoint(tables_in(db))


def reason_of(error: Exception) -> str:
    """What SQLite said, for a person; it can contain names from the database."""
    if isinstance(error, sqlite3.OperationalError) and "interrupted" in str(error):
        return "reading it takes too long"
    if isinstance(error, UnicodeDecodeError):
        return "malformed schema"
    return "".join(letter if letter.isprintable() else "?" for letter in str(error))[:120]


def _connected(source: Path | bytes) -> sqlite3.Connection:
    if isinstance(source, Path):
        return sqlite3.connect(uri_of(source), uri=True)
    db = sqlite3.connect(":memory:")
    # In memory, a database cannot have the write-ahead log that bytes 18 and 19 may announce.
    db.deserialize(source[:18] + b"\1\1" + source[20:])
    return db
