"""The evidence store: what its schema says, and that no row can break it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.evidence.schema import columns, tables
from ddx_tools.evidence.store import Store


def test_every_column_of_every_table_is_explained() -> None:
    with Store() as store:
        store.describe()
        described = store.query(
            "SELECT table_name, column_name, comment FROM duckdb_columns() "
            "WHERE database_name = current_database() AND table_name IN (SELECT table_name FROM duckdb_tables())"
        )
    assert described
    assert {row["table_name"] for row in described} == set(tables())
    assert all(row["comment"] for row in described)
    assert {(r["table_name"], r["column_name"], r["comment"]) for r in described} == {
        (table, column, comment) for table in tables() for column, (_, comment) in columns(table).items()
    }


def test_rows_come_back_as_they_went_in() -> None:
    rows: list[dict[str, Any]] = [
        {"group_id": 1 << 40, "members": [0, 1], "name": 'it\'s "quoted"; DROP TABLE fr_groups; --'},
        {"group_id": 1 << 41},
    ]
    with Store() as store:
        store.insert({"fr_groups": rows, "ranks": []})
        found = store.query("SELECT group_id, members, name, description FROM fr_groups ORDER BY group_id")
    assert found == [
        {**rows[0], "description": None},
        {"group_id": 1 << 41, "members": None, "name": None, "description": None},
    ]


def test_what_a_row_leaves_out_is_null_not_zero() -> None:
    with Store() as store:
        store.insert({"stack_threads": [{"pid": 1}]})
        (row,) = store.query("SELECT * FROM stack_threads")
    assert {value for name, value in row.items() if name != "pid"} == {None}


def test_a_column_that_the_schema_lacks_is_an_error() -> None:
    with Store() as store, pytest.raises(KeyError, match="wait_ms"):
        store.insert({"ranks": [{"rank": 0}, {"rank": 1, "wait_ms": 3}]})


def test_a_column_that_the_schema_lacks_is_an_error_in_batches_too() -> None:
    with Store() as store, pytest.raises(Exception, match="wait_ms"):
        store.insert([("fr_entries", pa.table({"seq": [1], "wait_ms": [3]}))])


def test_batches_may_come_with_some_columns_in_any_order() -> None:
    with Store() as store:
        store.insert((name, pa.table({"seq": [n], "record_id": [7]})) for n, name in enumerate(["fr_entries"] * 3))
        found = store.query("SELECT record_id, seq, call FROM fr_entries ORDER BY seq")
    assert found == [{"record_id": 7, "seq": n, "call": None} for n in range(3)]


def test_of_rows_with_one_key_the_first_is_kept() -> None:
    with Store() as store:
        store.insert({"fr_calls": [{"call": 1, "op": "all_reduce"}, {"call": 1, "op": "late"}]})
        store.insert({"fr_calls": [{"call": 1, "op": "later"}, {"call": 2, "op": "barrier"}]})
        found = store.query("SELECT call, op FROM fr_calls ORDER BY call")
    assert found == [{"call": 1, "op": "all_reduce"}, {"call": 2, "op": "barrier"}]


def test_a_table_of_an_analysis_is_replaced_and_holds_any_text() -> None:
    with Store() as store:
        store.replace("chosen", {"rank": "INTEGER", "why": "VARCHAR"}, [[1, "a"], [2, None]])
        store.replace("chosen", {"rank": "INTEGER", "why": "VARCHAR"}, [[3, "half \ud800"]])
        assert store.query("SELECT * FROM chosen") == [{"rank": 3, "why": "half ?"}]
        store.replace("chosen", {"rank": "INTEGER"}, [])
        assert store.query("SELECT * FROM chosen") == []


def test_parameters_are_not_read_as_sql() -> None:
    with Store() as store:
        store.insert({"ranks": [{"host": "' OR 1=1 --"}]})
        assert store.query("SELECT host FROM ranks WHERE host = ?", ["x"]) == []
        assert len(store.query("SELECT host FROM ranks WHERE host = ?", ["' OR 1=1 --"])) == 1


def test_one_bad_value_costs_that_value_only() -> None:
    rows = [
        {"rank": 0, "function": "half \ud800 character", "line": 7},
        {"rank": 1, "function": "fine", "line": 10**30},
    ]
    with Store() as store:
        store.insert({"log_events": rows})
        found = store.query("SELECT rank, function, line FROM log_events ORDER BY rank")
    assert found == [
        {"rank": 0, "function": "half ? character", "line": 7},
        {"rank": 1, "function": "fine", "line": None},
    ]


texts = st.text(st.characters(codec=None), max_size=30)  # lone surrogates included


@pytest.fixture(scope="module")
def shared_store() -> Iterator[Store]:
    """One store for all examples: making one takes longer than an example."""
    with Store() as store:
        yield store


@given(
    rows=st.lists(
        st.fixed_dictionaries({}, optional={"function": texts, "line": st.integers(), "time_s": st.floats()}),
        max_size=6,
    )
)
def test_any_text_and_any_number_can_be_stored(shared_store: Store, rows: list[dict[str, object]]) -> None:
    before = shared_store.query("SELECT count(*) AS n FROM log_events")[0]["n"]
    shared_store.insert({"log_events": rows})
    assert shared_store.query("SELECT count(*) AS n FROM log_events")[0]["n"] == before + len(rows)
