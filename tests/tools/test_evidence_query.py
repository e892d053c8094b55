"""Read-only SQL over saved evidence: what it answers, what it refuses, and that it always ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddx_tools.evidence.query import QueryLimits, query_evidence
from ddx_tools.evidence.store import Store
from ddx_tools.model.errors import TimedOut, UsageError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The saved rows of a job of 300 ranks."""
    file = tmp_path_factory.mktemp("it's") / "evidence.duckdb"
    with Store() as store:
        store.insert({"ranks": [{"host": "node1", "rank": rank, "state": "S"} for rank in range(300)]})
        store.execute("CREATE TEMP TABLE scratch AS SELECT 1 AS own")
        store.save(file)
    return file


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT rank, state FROM ranks WHERE rank > 297 ORDER BY rank", [[298, "S"], [299, "S"]]),
        ("WITH few AS (FROM ranks WHERE rank < 2) SELECT count(*) FROM few;", [[2]]),
        ("SELECT comment FROM duckdb_columns() WHERE column_name = 'ppid'", [["parent process id"]]),
        ("SELECT NULL, true, 1.5, 'nan'::DOUBLE, [1, 2], {'a': 1}, DATE '2026-01-02'",
         [[None, True, 1.5, "nan", [1, 2], "{'a': 1}", "2026-01-02"]]),
        ("SELECT column_name FROM (DESCRIBE ranks) LIMIT 1", [["host"]]),
        ("SELECT to_timestamp(0)::TIMESTAMP", [["1970-01-01 00:00:00"]]),
    ],
)  # fmt: skip
def test_what_only_reads_is_answered(rows: Path, sql: str, expected: list[list[object]]) -> None:
    assert query_evidence(rows, sql).rows == expected


def test_rows_and_cells_are_cut_and_it_is_said(rows: Path) -> None:
    found = query_evidence(rows, "SELECT rank FROM ranks ORDER BY rank", QueryLimits(most_rows=3))
    assert found.rows == [[0], [1], [2]] and found.more
    assert not query_evidence(rows, "SELECT 1", QueryLimits(most_rows=1)).more
    (cell,) = query_evidence(rows, "SELECT repeat('x', 10000)", QueryLimits(most_cell_chars=50)).rows[0]
    assert len(cell) == 50 and cell.endswith("…")
    wide = query_evidence(rows, "SELECT repeat('x', 400) FROM ranks", QueryLimits(most_bytes=2000))
    assert wide.more and len(wide.rows) == 4


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM read_csv('/etc/passwd', header=false)",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM read_parquet('http://127.0.0.1:1/x')",
        "ATTACH '/tmp/ddx-other.db' AS other",
        "COPY ranks TO '/tmp/ddx-stolen.csv'",
        "EXPORT DATABASE '/tmp/ddx-stolen'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "PRAGMA database_list",
        "SET enable_external_access = true",
        "CREATE TABLE own (i INTEGER)",
        "DROP TABLE ranks",
        "INSERT INTO ranks (rank) VALUES (7)",
        "WITH new AS (INSERT INTO ranks (rank) VALUES (7) RETURNING *) SELECT * FROM new",
        "EXPLAIN ANALYZE DELETE FROM ranks",
        "CALL pragma_version()",
        "SELECT 1; DROP TABLE ranks",
        "SELECT * FROM request",
        "SELECT getenv('HOME')",
        "-- nothing",
    ],
)
def test_what_does_more_than_read_the_evidence_is_refused(rows: Path, sql: str) -> None:
    before = rows.read_bytes()
    with pytest.raises(UsageError):
        query_evidence(rows, sql)
    assert rows.read_bytes() == before
    assert not list(Path("/tmp").glob("ddx-stolen*")) and not Path("/tmp/ddx-other.db").exists()


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT stat FROM ranks", 'Candidate bindings: "state"'),
        ("SELECT * FROM rank", 'Did you mean "ranks"'),
        ("SELEC 1", "syntax error"),
        ("DROP TABLE ranks", "only SELECT, WITH, DESCRIBE"),
        ("SELECT to_timestamp(0) AS at", "at: times with a zone are not shown; add ::TIMESTAMP"),
        ("SELECT [now()] AS times", "times: times with a zone"),
    ],
)
def test_an_error_says_what_to_ask_instead(rows: Path, sql: str, expected: str) -> None:
    with pytest.raises(UsageError) as refused:
        query_evidence(rows, sql)
    assert expected in str(refused.value) and "SHOW TABLES" in str(refused.value)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM range(1000000000000) a, range(10000000) b",
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t",
        "SELECT levenshtein(repeat('a', 300000), repeat('b', 300000))",
    ],
)
def test_what_never_ends_is_ended(rows: Path, sql: str) -> None:
    with pytest.raises(TimedOut, match="did not end within 1 s"):
        query_evidence(rows, sql, QueryLimits(time_s=1))


def test_what_takes_all_memory_is_ended(rows: Path) -> None:
    with pytest.raises((UsageError, TimedOut)):
        query_evidence(rows, "SELECT list_sum(range(2000000000))", QueryLimits(time_s=20))


def test_whoever_asked_can_give_up(rows: Path) -> None:
    class GivenUp(Exception):
        pass

    def give_up() -> None:
        raise GivenUp

    with pytest.raises(GivenUp):
        query_evidence(rows, "SELECT count(*) FROM range(1000000000000) a, range(10000000) b", wait=give_up)


def test_an_overlong_query_is_refused(rows: Path) -> None:
    with pytest.raises(UsageError, match="characters"):
        query_evidence(rows, f"SELECT '{'x' * 30_000}'")
