"""Facts and findings from outside: of a closed list, quoted, weighed less than what was seen, and told of."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddx_tools.errors import UsageError
from ddx_tools.findings import is_registered
from ddx_tools.handed_in import HandedIn, fact_finding, facts_listed, read_handed_in
from ddx_tools.investigate import investigate
from ddx_tools.looking.handed_in import with_checked
from ddx_tools.model import Level, Verdict
from ddx_tools.parsers.notes.outcomes import vocabulary
from ddx_tools.yaml_data import shipped

LOG = "step 1\nstep 2\nnode-3 was drained by the operator\n"


@pytest.fixture
def target(tmp_path: Path) -> list[str]:
    (tmp_path / "train.log").write_text(LOG)
    return [str(tmp_path / "train.log")]


def test_every_fact_of_the_list_can_be_told() -> None:
    for name, _ in facts_listed():
        assert fact_finding(f"{name}=yes").attributes["fact"] == name


def test_every_fact_that_is_accepted_is_listed() -> None:
    listed = {name for name, _ in facts_listed()}
    assert listed == set(vocabulary()) and "asks_whether_well" in listed


def test_a_fact_and_its_contrary() -> None:
    assert fact_finding("works_on_one_node").attributes["negated"] is False
    assert fact_finding("works_on_one_node=no").attributes["negated"] is True


@pytest.mark.parametrize("told", ["works_on_one_nod=yes", "works_on_one_node=perhaps", "hangs=no", "", "a b"])
def test_what_is_not_on_the_list_is_refused(told: str) -> None:
    with pytest.raises(UsageError):
        fact_finding(told)


def test_a_quote_that_stands_there_counts_and_the_answer_says_so(target: list[str]) -> None:
    one = HandedIn(code="rank.raised", ranks=[3], quote="drained by the operator", source="material train.log:3")
    alone, said = investigate(target).diagnose(), with_checked(one, [], target).diagnose()
    assert alone.changed == []
    assert said.changed and said.changed[0].startswith("1 handed in; ")
    assert [suspect.ranks for suspect in said.suspects] == [[3]]
    assert said.verdict is Verdict.UNDECIDED
    assert all(cause.level is not Level.ESTABLISHED for cause in said.causes)


@pytest.mark.parametrize(
    ("quote", "source"),
    [("drained by nobody", "material train.log:3"), ("drained by the operator", "material other.log:3")],
)
def test_a_quote_that_does_not_stand_there_is_refused(target: list[str], quote: str, source: str) -> None:
    with pytest.raises(UsageError):
        with_checked(HandedIn(code="rank.raised", ranks=[3], quote=quote, source=source), [], target)


def test_a_code_that_nobody_registered_is_refused_with_near_ones() -> None:
    with pytest.raises(UsageError) as refused:
        HandedIn(code="rank.raise", quote="abcd", source="ranks").finding()
    assert "rank.raised" in refused.value.help


def test_what_was_kept_is_read_again() -> None:
    one = HandedIn(code="rank.raised", quote="abcd", source="ranks", attributes={"independent": False})
    assert read_handed_in(f"[{one.model_dump_json()}]".encode()) == [one]
    assert one.finding().attributes == {"independent": False, "basis": "added"}


def test_usual_attributes_are_those_of_registered_codes() -> None:
    assert all(is_registered(code) for code in shipped("handed_in.yaml"))
