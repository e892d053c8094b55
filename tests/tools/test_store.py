"""The evidence store: what its schema says, and that no row can break it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddx_tools.store import Store, columns, tables


def test_every_column_of_every_table_is_explained() -> None:
    with Store() as store:
        described = store.query("SELECT table_name, column_name, comment FROM duckdb_columns() WHERE NOT internal")
    assert described
    assert {row["table_name"] for row in described} == set(tables())
    assert all(row["comment"] for row in described)
    assert {(r["table_name"], r["column_name"], r["comment"]) for r in described} == {
        (table, column, comment) for table in tables() for column, (_, comment) in columns(table).items()
    }


def test_rows_come_back_as_they_went_in() -> None:
    rows: list[dict[str, Any]] = [
        {"rank": 0, "members": [0, 1], "name": 'it\'s "quoted"; DROP TABLE groups; --', "last_enqueued": 1 << 40},
        {"rank": 1},
    ]
    with Store() as store:
        store.insert({"groups": rows, "ranks": []})
        found = store.query("SELECT rank, members, name, last_enqueued, host FROM groups ORDER BY rank")
    assert found == [
        {**rows[0], "host": None},
        {"rank": 1, "members": None, "name": None, "last_enqueued": None, "host": None},
    ]


def test_what_a_row_leaves_out_is_null_not_zero() -> None:
    with Store() as store:
        store.insert({"stack_threads": [{"pid": 1}]})
        (row,) = store.query("SELECT * FROM stack_threads")
    assert {value for name, value in row.items() if name != "pid"} == {None}


def test_a_column_that_the_schema_lacks_is_an_error() -> None:
    with Store() as store, pytest.raises(KeyError, match="wait_ms"):
        store.insert({"ranks": [{"rank": 0}, {"rank": 1, "wait_ms": 3}]})


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
@settings(max_examples=50)
def test_any_text_and_any_number_can_be_stored(shared_store: Store, rows: list[dict[str, object]]) -> None:
    before = shared_store.query("SELECT count(*) AS n FROM log_events")[0]["n"]
    shared_store.insert({"log_events": rows})
    assert shared_store.query("SELECT count(*) AS n FROM log_events")[0]["n"] == before + len(rows)
