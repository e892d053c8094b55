"""Clauses of playbooks against findings."""

from __future__ import annotations

from typing import Any

import pytest

from ddx_tools.diagnosis.matching import fill, match_clause, meets
from ddx_tools.diagnosis.playbook import Clause, Condition
from ddx_tools.model.diagnosis import Finding, Location, Severity


def finding(code: str = "rank.stopped", *ranks: int, **attributes: Any) -> Finding:
    special = {name: attributes.pop(name) for name in ("hosts", "group", "severity", "locations") if name in attributes}
    return Finding(code=code, ranks=list(ranks), summary=f"{code} {list(ranks)}", attributes=attributes, **special)


def clause(*conditions: dict[str, Any], **keys: Any) -> Clause:
    return Clause.model_validate({"all": list(conditions), **keys})


def holds(test: Any, **attributes: Any) -> bool:
    return meets(finding(**attributes), Condition(finding="rank.stopped", where={"x": test}))


@pytest.mark.parametrize(
    ("test", "value", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        (True, True, True),
        (True, False, False),
        (True, None, False),
        (3, [1, 3], True),
        (3, [1, 2], False),
        (["a", "b"], "b", True),
        (["a", "b"], None, False),
        (["a"], ["b", "a"], True),
        (["a"], [], False),
        ([False, "unknown"], None, True),
        ([False, "unknown"], True, False),
        ("unknown", [], False),
        ("none", [], True),
        ("none", None, False),
        ({"not": ["a", "b"]}, "c", True),
        ({"not": ["a", "b"]}, None, True),
        ({"not": "a"}, ["a", "b"], False),
        ({"not": ["none", "unknown"]}, [], False),
        ({"not": ["none", "unknown"]}, None, False),
        ({"in": ["a"], "not": ["b"]}, ["a", "c"], True),
        ({"in": ["a"], "not": ["b"]}, ["a", "b"], False),
        ({"min": 5}, 5, True),
        ({"min": 5}, 4.9, False),
        ({"min": 0}, None, False),
        ({"max": 5}, 5.1, False),
        ({"max": 5}, None, False),
        ({"min": 1, "max": 3}, 2, True),
        ({"min": 1, "max": 3}, 4, False),
    ],
)
def test_what_a_condition_asks_of_an_attribute(test: Any, value: Any, expected: bool) -> None:
    assert holds(test, x=value) is expected


def test_an_attribute_that_a_finding_lacks_is_nothing() -> None:
    assert not holds("a")
    assert not holds({"min": 0})
    assert holds({"not": ["a"]})
    assert holds("unknown")


def test_what_somebody_reported_is_a_condition_of_its_own() -> None:
    said, denied = (finding("user.reported", fact="hangs", negated=negated) for negated in (False, True))
    so, not_so = (Condition.model_validate({"fact": ["hangs", "crashes"], "is": yes}) for yes in (True, False))
    assert meets(said, so) and meets(said, Condition.model_validate({"fact": "hangs"}))
    assert meets(denied, not_so)
    assert not meets(said, not_so) and not meets(denied, so)


def test_severity_and_the_number_of_ranks_can_be_asked_for() -> None:
    one = finding("rank.stopped", 1, 2, severity=Severity.FAILURE)
    assert meets(one, Condition(finding="rank.stopped", where={"severity": "failure", "count": {"max": 2}}))
    assert not meets(one, Condition(finding="rank.stopped", where={"count": 3}))


def test_all_findings_that_can_play_a_part_are_bound() -> None:
    stopped = [finding("rank.stopped", 1), finding("rank.stopped", 3)]
    match = match_clause(clause({"finding": "rank.stopped", "as": "it"}), stopped)
    assert match is not None
    assert match.bindings["it"] == stopped
    assert match.fill("{it.ranks}") == "ranks 1, 3"


def test_a_clause_needs_all_of_its_conditions() -> None:
    both = clause({"finding": "rank.stopped"}, {"finding": "rank.raised"})
    assert match_clause(both, [finding("rank.stopped", 1)]) is None
    assert match_clause(both, [finding("rank.stopped", 1), finding("rank.raised", 2)]) is not None


def test_an_absent_finding_must_not_be_there() -> None:
    alone = clause({"finding": "rank.stopped"}, {"finding": "rank.raised", "where": {"x": 1}, "absent": True})
    assert match_clause(alone, [finding("rank.stopped", 1), finding("rank.raised", 1, x=2)]) is not None
    assert match_clause(alone, [finding("rank.stopped", 1), finding("rank.raised", 1, x=1)]) is None


def test_findings_of_one_rank_are_joined() -> None:
    joined = clause({"finding": "rank.stopped", "as": "a"}, {"finding": "rank.raised", "as": "b"}, same="rank")
    apart = [finding("rank.stopped", 1), finding("rank.raised", 2)]
    assert match_clause(joined, apart) is None
    match = match_clause(joined, [*apart, finding("rank.raised", 1, 7), finding("rank.stopped", 5)])
    assert match is not None
    assert [f.ranks for f in match.bindings["a"]] == [[1]]
    assert [f.ranks for f in match.bindings["b"]] == [[1, 7]]


def test_a_join_of_three_needs_one_rank_in_all_of_them() -> None:
    three = clause(*({"finding": code} for code in ("rank.stopped", "rank.raised", "rank.killed")), same="rank")
    chain = [finding("rank.stopped", 1, 2), finding("rank.raised", 2, 3), finding("rank.killed", 3, 1)]
    assert match_clause(three, chain) is None
    assert match_clause(three, [*chain, finding("rank.killed", 2)]) is not None


@pytest.mark.parametrize(("same", "keys"), [("host", {"hosts": ["n1"]}), ("group", {"group": "tp_0"})])
def test_findings_are_joined_on_host_and_group(same: str, keys: dict[str, Any]) -> None:
    joined = clause({"finding": "rank.stopped"}, {"finding": "rank.raised"}, same=same)
    nowhere = [finding("rank.stopped", 1), finding("rank.raised", 1)]
    assert match_clause(joined, nowhere) is None, "what says no host and no group shares none"
    assert match_clause(joined, [finding("rank.stopped", 1, **keys), finding("rank.raised", 2, **keys)]) is not None


def test_a_clause_can_be_about_the_culprits() -> None:
    about = clause({"finding": "rank.stopped"}, same="culprit")
    assert match_clause(about, [finding("rank.stopped", 1)], {2, 3}) is None
    assert match_clause(about, [finding("rank.stopped", 1, 2)], {2, 3}) is not None
    assert match_clause(about, [finding("rank.stopped", 1)]) is None


def test_no_rank_of_a_large_job_is_left_out() -> None:
    both = clause({"finding": "rank.raised", "as": "raised"}, {"finding": "collective.connection_lost", "as": "lost"})
    findings = [finding(code, rank) for code in ("rank.raised", "collective.connection_lost") for rank in range(250)]
    match = match_clause(both, findings)
    assert match is not None
    assert match.fill("{raised.ranks}") == "ranks 0-249"


# --- sentences


def place(line: int) -> Location:
    return Location(file="/srv/job/train.py", line=line, function="main")


def test_placeholders_become_what_was_seen() -> None:
    bindings = {
        "a": [finding("rank.stopped", 4, 5, state="T", locations=[place(3)]), finding("rank.stopped", 3, state="t")]
    }
    text = "{a.ranks} | {a.place} | {a.state} | {a.summary}"
    assert fill(text, bindings) == "ranks 3-5 | train.py:3 main | T, t | rank.stopped [4, 5]; rank.stopped [3]"


def test_placeholders_without_a_value_do_not_break_a_sentence() -> None:
    assert fill("{x.ranks}, {x.place}, {x.state}", {}) == "an unidentified rank, an unknown place, unknown"


@pytest.mark.parametrize("question", ["What does {a.ranks} do?", "What do {a.ranks} do?"])
def test_a_question_agrees_in_number_with_its_ranks(question: str) -> None:
    assert fill(question, {"a": [finding("rank.stopped", 3)]}) == "What does rank 3 do?"
    assert fill(question, {"a": [finding("rank.stopped", 3, 4)]}) == "What do ranks 3-4 do?"
    assert fill("What did {a.ranks} send?", {"a": [finding("rank.stopped", 3)]}) == "What did rank 3 send?"


def test_what_a_job_says_is_not_filled_in_again() -> None:
    """A function named like a placeholder stays what it is."""
    hostile = finding("rank.stopped", 1, state="{a.ranks} {0} {", locations=[])
    assert fill("{a.state}", {"a": [hostile]}) == "{a.ranks} {0} {"
