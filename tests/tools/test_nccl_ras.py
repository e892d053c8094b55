"""What `ncclras` prints, as text and as JSON, and what is made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nccl_logs import findings_of, of_code, rows_of

from ddx_tools.model.diagnosis import Severity
from ddx_tools.parsers.nccl.nccl_ras import RasFact, read_ras

FIXTURES = Path(__file__).parents[1] / "fixtures/nccl"
TEXTS = ("ras_2.24.txt", "ras_2.30_ahead.txt", "ras_2.28.9.json")


def read(name: str) -> list[RasFact]:
    return read_ras((FIXTURES / name).read_text(encoding="utf-8"))


def of_what(facts: list[RasFact], what: str) -> list[RasFact]:
    return [fact for fact in facts if fact.what == what]


def test_text_of_2_24() -> None:
    facts = read("ras_2.24.txt")
    assert (facts[0].version, facts[0].nranks) == ("2.24.3", 32)
    most, few = of_what(facts, "operations")
    assert (most.many, most.value, most.ranks) == (29, "6650", ())
    assert (few.many, few.value, few.ranks, few.communicator, few.nranks) == (2, "6649", (5, 7), "cf264af53edbe986", 32)
    process, ranks = of_what(facts, "missing")
    assert (process.host, process.pid, ranks.ranks) == ("10.1.4.13", 3487, (21,))
    assert few.line == 38 and few.quote == "2 ranks have launched up to operation 6649"


def test_text_of_2_30_names_the_operation() -> None:
    most, one = of_what(read("ras_2.30_ahead.txt"), "operations")
    assert (most.operation, most.many, one.ranks, one.value) == ("AllReduce", 15, (0,), "813")


def test_json_without_its_comma() -> None:
    text = (FIXTURES / "ras_2.28.9.json").read_text(encoding="utf-8")
    with pytest.raises(ValueError):
        json.loads(text)
    facts = read_ras(text)
    differing = [fact for fact in of_what(facts, "operations") if fact.status == "MISMATCH"]
    assert {(fact.operation, fact.value, fact.ranks) for fact in differing} == {
        ("AllReduce", "408", (0, 1)),
        ("AllReduce", "407", (2,)),
    }
    (dead,), (error,) = of_what(facts, "dead"), of_what(facts, "async_error")
    assert (dead.ranks, dead.host, dead.pid) == ((3,), "10.1.4.13", 1978)
    assert (error.ranks, error.value) == ((2,), "6")


def test_json_with_its_comma_says_the_same() -> None:
    text = (FIXTURES / "ras_2.28.9.json").read_text(encoding="utf-8")
    assert read_ras(text.replace('"nvml_dev": 1\n', '"nvml_dev": 1,\n')) == read_ras(text)


def test_ranks_behind_are_named_where_ras_lists_them() -> None:
    (found,) = of_code(findings_of(FIXTURES / "ras_2.24.txt"), "collective.missing_ranks")
    assert (found.ranks, found.severity, found.attributes["minority"]) == ([5, 7], Severity.WARNING, True)
    assert "query it again" in found.summary


def test_where_ras_lists_those_ahead_the_ones_behind_stay_unknown() -> None:
    (found,) = of_code(findings_of(FIXTURES / "ras_2.30_ahead.txt"), "collective.missing_ranks")
    assert (found.ranks, found.attributes["missing"], found.attributes["minority"]) == ([], [], False)
    assert "15 ranks (which RAS does not list)" in found.summary


def test_processes_that_do_not_answer() -> None:
    found = of_code(findings_of(FIXTURES / "ras_2.28.9.json"), "log.signature")
    assert {(each.attributes["signature"], tuple(each.ranks)) for each in found} == {
        ("nccl_ras_dead", (3,)),
        ("nccl_ras_error", (2,)),
    }


def test_a_job_without_trouble(tmp_path: Path) -> None:
    text = (FIXTURES / "ras_2.24.txt").read_text(encoding="utf-8").split("Errors\n======")[0]
    (tmp_path / "ras.txt").write_text(
        text.replace("INCOMPLETE,MISMATCH", "OK") + "Errors\n======\n\nWarnings\n========\n\n"
    )
    assert findings_of(tmp_path / "ras.txt") == []
    assert [row["what"] for row in rows_of(tmp_path / "ras.txt")["nccl_ras"]] == ["summary"]


@given(st.sampled_from(TEXTS), st.data())
def test_texts_that_were_cut_are_read_without_an_error(name: str, data: st.DataObject) -> None:
    text = (FIXTURES / name).read_text(encoding="utf-8")
    at = data.draw(st.integers(0, len(text)))
    noise = data.draw(st.text(max_size=40))
    read_ras(text[:at])
    read_ras(text[:at] + noise + text[at:])


KEYS = (
    "rank",
    "host",
    "pid",
    "nvml_dev",
    "status",
    "size",
    "hash",
    "ranks",
    "collective_counts",
    "async_error",
    "Reduce",
)
VALUES: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYS), inner),
)


@given(VALUES)
def test_any_json_is_read_without_an_error(value: object) -> None:
    root = {"nccl_version": "2.29.1", "communicators": [value, {"ranks": [value], "missing_ranks": value}]}
    read_ras(json.dumps(root))
