"""The differential, on small pages and findings made for the purpose."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.diagnosis.diagnose import diagnose
from ddx_tools.diagnosis.playbook import Cause, Playbooks, Symptom, load_playbooks
from ddx_tools.knowledge.finding_codes import finding_codes
from ddx_tools.model.diagnosis import Diagnosis, Evidence, Finding, Level, Location, Missing, Verdict
from ddx_tools.redaction.published import published_json

HANG: dict[str, Any] = {
    "kind": "symptom",
    "id": "hang",
    "title": "It hangs",
    "present": [{"all": [{"finding": "collective.peers_wait", "as": "waiting"}]}],
    "absent": [{"all": [{"finding": "job.progressing", "as": "moving"}], "says": "{moving.ranks} moved on"}],
    "victims": ["waiting"],
    "next_check": [{"probe": "stacks", "question": "Where is every rank?"}],
}


def cause(id_: str, code: str, strength: str = "strong", **keys: Any) -> dict[str, Any]:
    """A page that one finding decides."""
    page: dict[str, Any] = {
        "kind": "cause",
        "id": id_,
        "title": f"it is {id_}",
        "category": "rank-absent",
        "symptoms": ["hang"],
        "decides": [{"all": [{"finding": code, "as": "odd"}], "strength": strength}],
        "culprits": ["odd"],
        "fix": ["mend {odd.ranks}"],
        "verify": ["look at {odd.place}"],
    }
    return page | keys


def supports(code: str, strength: str) -> dict[str, Any]:
    return {"all": [{"finding": code, "as": "odd"}], "strength": strength}


def judged(
    findings: list[Finding], *pages: dict[str, Any], missing: int = 0, symptom: dict[str, Any] | None = None
) -> Diagnosis:
    book = Playbooks([Symptom.model_validate(symptom or HANG), *map(Cause.model_validate, pages)])
    return diagnose(findings, book, [Missing(what=f"thing {n}", why_it_matters="it does") for n in range(missing)])


def seen(code: str, *ranks: int, line: int | None = None, **keys: Any) -> Finding:
    places = [Location(file="/srv/job/train.py", line=line, function="main")] if line else []
    return Finding(code=code, ranks=list(ranks), summary=f"{code} of {list(ranks)}", locations=places, **keys)


WAIT = seen("collective.peers_wait", 0, 1, 3, line=41)
STOPPED = seen("rank.stopped", 2, line=7)


# --- strengths, and what becomes of them (the table of docs/playbooks.md)


@pytest.mark.parametrize(
    ("strength", "probability", "verdict"),
    [("conclusive", 0.989, "diagnosed"), ("strong", 0.924, "diagnosed"), ("moderate", 0.731, "diagnosed"),
     ("weak", 0.378, "undecided")],
)  # fmt: skip
def test_one_clause_alone(strength: str, probability: float, verdict: str) -> None:
    found = judged([WAIT, STOPPED], cause("stop", "rank.stopped", strength))
    assert found.causes[0].probability == pytest.approx(probability, abs=0.001)
    assert found.verdict == verdict


def test_what_could_not_be_looked_at_lowers_every_probability() -> None:
    probabilities = [
        judged([WAIT, STOPPED], cause("stop", "rank.stopped"), missing=n).causes[0].probability for n in range(7)
    ]
    assert probabilities[:5] == pytest.approx([0.924, 0.881, 0.818, 0.731, 0.622], abs=0.001)
    assert probabilities[4:] == [probabilities[4]] * 3, "there is a limit: a thousand unread ranks are not proof"
    moderate = judged([WAIT, STOPPED], cause("stop", "rank.stopped", "moderate"), missing=2)
    assert moderate.verdict is Verdict.UNDECIDED
    assert moderate.culprits.ranks == []
    assert [m.what for m in moderate.missing] == ["thing 0", "thing 1"]


def test_supporting_clauses_alone_never_diagnose() -> None:
    page = cause("stop", "rank.killed", supports=[supports("rank.stopped", "conclusive")] * 3)
    found = judged([WAIT, STOPPED], page)
    assert (found.verdict, found.causes[0].level) == (Verdict.UNDECIDED, Level.SUPPORTED)
    assert found.culprits.ranks == []


def test_supporting_clauses_raise_a_deciding_one_up_to_a_limit() -> None:
    plain = judged([WAIT, STOPPED], cause("stop", "rank.stopped", "moderate")).causes[0].probability
    some, many = (
        judged(
            [WAIT, STOPPED], cause("stop", "rank.stopped", "moderate", supports=[supports("rank.stopped", "weak")] * n)
        )
        .causes[0]
        .probability
        for n in (1, 50)
    )
    assert plain < some < many
    conclusive = judged([WAIT, STOPPED], cause("stop", "rank.stopped", "conclusive")).causes[0].probability
    assert many == pytest.approx(conclusive, abs=0.01)


def test_what_is_impossible_is_no_candidate_and_said_to_be_ruled_out() -> None:
    page = cause("stop", "rank.stopped", "conclusive", excludes=[{"all": [{"finding": "rank.raised"}]}])
    found = judged([WAIT, STOPPED, seen("rank.raised", 1)], page)
    assert (found.verdict, found.causes) == (Verdict.UNDECIDED, [])
    assert [(item.id, item.why) for item in found.ruled_out] == [("stop", "rank.raised of [1]")]


def test_what_makes_a_cause_impossible_makes_its_special_cases_impossible() -> None:
    above = cause("ended", "rank.killed", excludes=[{"all": [{"finding": "rank.raised"}]}])
    page = cause("stop", "rank.stopped", refines=["ended"])
    assert judged([WAIT, STOPPED], above, page).verdict is Verdict.DIAGNOSED
    found = judged([WAIT, STOPPED, seen("rank.raised", 1)], above, page)
    assert found.causes == []
    assert {item.id for item in found.ruled_out} == {"ended", "stop"}


def test_what_is_impossible_of_somebody_else_is_not_of_the_culprits() -> None:
    page = cause("stop", "rank.stopped", excludes=[{"all": [{"finding": "rank.raised"}], "same": "culprit"}])
    assert judged([WAIT, STOPPED, seen("rank.raised", 1)], page).verdict is Verdict.DIAGNOSED
    assert judged([WAIT, STOPPED, seen("rank.raised", 2)], page).verdict is Verdict.UNDECIDED


# --- several causes


def test_two_causes_that_blame_different_ranks_are_undecided() -> None:
    found = judged(
        [WAIT, STOPPED, seen("rank.raised", 1)], cause("stop", "rank.stopped"), cause("raise", "rank.raised")
    )
    assert found.verdict is Verdict.UNDECIDED
    assert [c.probability for c in found.causes] == pytest.approx([0.48, 0.48], abs=0.01)
    assert (found.culprits.ranks, found.culprits.locations, found.fix) == ([], [], [])
    assert {c.id: c.culprits.ranks for c in found.causes} == {"stop": [2], "raise": [1]}


def test_rivals_that_blame_the_same_ranks_are_undecided_and_a_special_case_agrees() -> None:
    raised, stopped = seen("rank.raised", 2), cause("stop", "rank.stopped")
    assert judged([WAIT, STOPPED, raised], stopped, cause("raise", "rank.raised")).verdict is Verdict.UNDECIDED
    found = judged([WAIT, STOPPED, raised], stopped, cause("raise", "rank.raised", refines=["stop"]))
    assert found.verdict is Verdict.DIAGNOSED
    assert found.culprits.ranks == [2]


def test_two_causes_that_blame_different_hosts_do_not_agree() -> None:
    found = judged(
        [WAIT, seen("rank.stopped", hosts=["a"]), seen("rank.raised", hosts=["b"])],
        cause("stop", "rank.stopped"),
        cause("raise", "rank.raised"),
    )
    assert found.verdict is Verdict.UNDECIDED


def test_the_order_of_findings_and_pages_changes_nothing() -> None:
    findings = [WAIT, STOPPED, seen("rank.raised", 2, line=9), seen("rank.lock_wait", 2)]
    pages = [cause("b", "rank.raised"), cause("a", "rank.stopped"), cause("c", "rank.lock_wait", "weak")]
    one = judged(findings, *pages)
    other = judged(findings[::-1], *pages[::-1])
    assert [c.id for c in one.causes] == [c.id for c in other.causes] == ["a", "b", "c"]
    assert one.culprits.ranks == other.culprits.ranks


# --- healthy, or nobody looked


def test_healthy_is_what_was_looked_at_and_moves() -> None:
    found = judged([seen("job.progressing", 0, 1)], cause("stop", "rank.stopped"))
    assert (found.verdict, found.headline, found.causes) == (Verdict.HEALTHY, "ranks 0-1 moved on", [])
    assert found.next_check is None


def test_nothing_seen_is_not_healthy() -> None:
    found = judged([], cause("stop", "rank.stopped"))
    assert found.verdict is Verdict.UNDECIDED
    assert found.next_check is None, "no check fits where no symptom was seen"


def test_a_symptom_outweighs_the_signs_of_health() -> None:
    found = judged([WAIT, seen("job.progressing", 0)], cause("stop", "rank.stopped"))
    assert found.verdict is Verdict.UNDECIDED


def test_a_cause_is_not_judged_without_its_symptom() -> None:
    found = judged([STOPPED], cause("stop", "rank.stopped", "conclusive"))
    assert (found.verdict, found.causes) == (Verdict.UNDECIDED, [])


# --- who, where, what to do


def test_culprits_are_kept_apart_from_victims() -> None:
    waiting = seen("collective.peers_wait", 0, 1, 2, 3, line=7)
    found = judged([waiting, STOPPED], cause("stop", "rank.stopped"))
    assert (found.culprits.ranks, found.victims.ranks) == ([2], [0, 1, 3])
    assert [(p.line, p.function) for p in found.culprits.locations] == [(7, "main")]
    assert found.victims.locations == [], "a place that is to blame is not at the same time where the victims are"


def test_the_answer_is_told_with_ranks_and_places() -> None:
    evidence = [Evidence(source="raw/n/stacks/a.json", line=3, quote="Thread 7 (idle)"), Evidence(source="b")]
    stopped = STOPPED.model_copy(update={"evidence": evidence})
    found = judged([WAIT, stopped], cause("stop", "rank.stopped"))
    assert found.headline == "Rank 2 at train.py:7 main: it is stop"
    assert (found.fix, found.verify) == (["mend rank 2"], ["look at train.py:7 main"])
    assert found.chain == ["rank.stopped of [2]", "collective.peers_wait of [0, 1, 3]"]
    assert [(c.finding, c.source, c.line, c.quote) for c in found.evidence] == [
        ("rank.stopped", "raw/n/stacks/a.json", 3, "Thread 7 (idle)")
    ]


def test_only_the_strongest_clauses_name_culprits() -> None:
    page = cause("stop", "rank.stopped", "conclusive")
    page["decides"] = [*page["decides"], {"all": [{"finding": "rank.raised", "as": "odd"}], "strength": "weak"}]
    assert judged([WAIT, STOPPED, seen("rank.raised", 1)], page).culprits.ranks == [2]


# --- the next check


def check(question: str, *separates: str, **keys: Any) -> dict[str, Any]:
    return {"probe": "ask", "question": question, "separates": list(separates), **keys}


def test_of_several_candidates_the_check_that_separates_most_is_asked() -> None:
    pages = [
        cause("a", "rank.stopped", next_check=[check("only a?", "a")]),
        cause("b", "rank.raised", next_check=[check("a or b?", "a", "b")]),
    ]
    found = judged([WAIT, STOPPED, seen("rank.raised", 1)], *pages)
    assert found.next_check is not None
    assert found.next_check.question == "a or b?"


def test_a_check_is_asked_only_when_its_condition_holds() -> None:
    when = {"when": [{"finding": "rank.unreadable", "as": "unread"}], "args": {"ranks": "{unread.ranks}", "looks": 2}}
    symptom = HANG | {"next_check": [check("What of {unread.ranks}?", **when), *HANG["next_check"]]}
    without = judged([WAIT], symptom=symptom)
    assert without.next_check is not None
    assert without.next_check.question == "Where is every rank?"
    asked = judged([WAIT, seen("rank.unreadable", 2, 5)], symptom=symptom).next_check
    assert asked is not None
    assert (asked.question, asked.args) == ("What of ranks 2, 5?", {"ranks": "ranks 2, 5", "looks": 2})


def test_a_symptom_that_was_seen_is_asked_about_before_one_that_was_only_told() -> None:
    crash = HANG | {
        "id": "crash",
        "present": [{"all": [{"finding": "user.reported"}]}],
        "absent": [],
        "victims": [],
        "next_check": [{"probe": "ask", "question": "Who ended first?"}],
    }
    book = Playbooks([Symptom.model_validate(crash), Symptom.model_validate(HANG)])
    told = seen("user.reported", attributes={"fact": "crashes", "basis": "user"})
    both, alone = diagnose([told, WAIT], book, []), diagnose([told], book, [])
    assert both.next_check is not None
    assert both.next_check.question == "Where is every rank?"
    assert alone.next_check is not None
    assert alone.next_check.question == "Who ended first?"


def test_a_leading_cause_asks_its_own_check() -> None:
    found = judged([WAIT, STOPPED], cause("a", "rank.stopped", next_check=[check("sure?", "a")]))
    assert found.next_check is not None
    assert found.next_check.question == "sure?"


# --- any findings at all, against the shipped pages

values = st.none() | st.booleans() | st.integers(-5, 99) | st.sampled_from(["sleep", "past_loop", "T", "all_reduce"])
attributes = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("activity", "relation", "minority", "moving", "circular", "rank0"), values),
        "wait_s": st.floats(0, 1e6),
    },
)
findings_strategy = st.lists(
    st.builds(
        Finding,
        code=st.sampled_from(sorted(finding_codes())),
        ranks=st.lists(st.integers(0, 7), max_size=4, unique=True),
        hosts=st.lists(st.sampled_from(["a", "b"]), max_size=1),
        summary=st.text(max_size=10),
        attributes=attributes,
    ),
    max_size=8,
)


@given(findings=findings_strategy, missing=st.integers(0, 3))
def test_any_findings_give_a_valid_diagnosis(findings: list[Finding], missing: int) -> None:
    found = diagnose(findings, load_playbooks(), [Missing(what="x", why_it_matters="y")] * missing)
    assert Diagnosis.model_validate(json.loads(published_json(found))) == found
    assert sum(c.probability for c in found.causes) <= 1.001
    assert [c.probability for c in found.causes] == sorted((c.probability for c in found.causes), reverse=True)
    assert not set(found.culprits.ranks) & set(found.victims.ranks)
    if found.verdict is not Verdict.DIAGNOSED:
        assert (found.culprits.ranks, found.fix) == ([], [])
    else:
        assert found.causes[0].level is Level.ESTABLISHED
        assert "{" not in found.headline


# --- the tree: how far an answer reaches, and what is explained


def node(id_: str, code: str, strength: str = "strong", **keys: Any) -> dict[str, Any]:
    return cause(id_, code, category="node", decides=[], supports=[supports(code, strength)], culprits=[], **keys)


STUCK = node("stuck", "rank.outside_collective", fix=["look"], verify=["look"])


def test_an_undecided_answer_is_narrowed_to_the_node_that_is_safe() -> None:
    leaves = [cause(leaf, "rank.held", "weak", refines=["stuck"]) for leaf in ("lock", "disk")]
    held, outside = seen("rank.held", 2), seen("rank.outside_collective", 2)
    found = judged([WAIT, held, outside], STUCK, *leaves)
    assert found.verdict is Verdict.UNDECIDED
    assert found.narrowed_to is not None and found.narrowed_to.id == "stuck"
    assert [one.id for one in found.causes] == ["disk", "lock"], "a node is no cause of its own"
    assert judged([WAIT, seen("job.progress")], STUCK, *leaves).narrowed_to is None


def test_nodes_of_which_as_much_is_seen_are_rivals() -> None:
    one = cause(
        "lock", "rank.held", refines=["stuck"], supports=[supports("rank.held", "weak")], decides=[], culprits=[]
    )
    other = node("apart", "collective.operation_mismatch", fix=["look"], verify=["look"])
    seen_of_it = [WAIT, seen("rank.outside_collective", 2), seen("rank.held", 2)]
    found = judged(seen_of_it, STUCK, other, one)
    assert found.narrowed_to is not None and found.narrowed_to.id == "stuck"
    found = judged([*seen_of_it, seen("collective.operation_mismatch", 2)], STUCK, other, one)
    assert found.narrowed_to is None


def test_what_is_narrowed_down_is_asked_what_tells_its_special_cases_apart() -> None:
    leaves = [cause(leaf, "rank.held", "weak", refines=["stuck"]) for leaf in ("lock", "disk")]
    asks = {"probe": "ask", "question": "A lock, or a disk?", "separates": ["lock", "disk"]}
    findings = [WAIT, seen("rank.held", 2), seen("rank.outside_collective", 2)]
    plain, asking = (judged(findings, page, *leaves).next_check for page in (STUCK, {**STUCK, "next_check": [asks]}))
    assert plain is not None and plain.question == "Where is every rank?"
    assert asking is not None and asking.question == "A lock, or a disk?"


def test_a_diagnosis_is_narrowed_to_its_cause() -> None:
    found = judged([WAIT, STOPPED], STUCK, cause("stop", "rank.stopped", refines=["stuck"]))
    assert found.verdict is Verdict.DIAGNOSED
    assert found.narrowed_to is not None
    assert found.narrowed_to.id == "stop"


def test_what_a_special_case_accounts_for_does_not_speak_for_what_is_above_it() -> None:
    killed, oom = seen("rank.killed", 2), seen("host.oom_kill", 2)
    general = cause("ended", "rank.killed")
    special = cause("memory", "host.oom_kill", refines=["ended"], explains=[{"finding": "rank.killed"}])
    found = judged([WAIT, killed, oom], general, special)
    assert [(one.id, one.level) for one in found.causes] == [("memory", Level.ESTABLISHED)]
    assert [one.id for one in judged([WAIT, killed], general, special).causes] == ["ended"]


def test_what_happened_to_another_rank_is_not_explained() -> None:
    general = cause("ended", "rank.killed")
    special = cause("memory", "host.oom_kill", refines=["ended"], explains=[{"finding": "rank.killed"}])
    found = judged([WAIT, seen("rank.killed", 3), seen("host.oom_kill", 2)], general, special)
    assert {one.id for one in found.causes} == {"ended", "memory"}


def test_a_weaker_rival_on_the_same_finding_is_explained_away() -> None:
    found = judged([WAIT, STOPPED], cause("stop", "rank.stopped"), cause("other", "rank.stopped", "moderate"))
    assert [one.id for one in found.causes] == ["stop"]


def test_sentences_agree_in_number_with_their_ranks() -> None:
    one = cause("stop", "rank.stopped", fix=["{odd.ranks} is stopped", "{odd.ranks} wait for it"])
    assert judged([WAIT, STOPPED], one).fix == ["rank 2 is stopped", "rank 2 waits for it"]
    assert judged([WAIT, seen("rank.stopped", 2, 3)], one).fix == ["ranks 2-3 are stopped", "ranks 2-3 wait for it"]
    assert judged([WAIT, seen("rank.stopped")], one).fix[0] == "an unidentified rank is stopped"


def test_what_is_left_over_yields_to_what_explains_the_same_and_has_more() -> None:
    general = cause("general", "rank.raised", residual=True)
    special = cause("special", "rank.exited", decides=[], supports=[supports("rank.exited", "moderate")])
    explaining = special | {"explains": [{"finding": "rank.raised"}]}
    error, end = seen("rank.raised", 1), seen("rank.exited", 1)
    assert judged([WAIT, error], general, explaining).verdict is Verdict.DIAGNOSED
    beside = judged([WAIT, error, end], general, explaining)
    assert (beside.verdict, beside.causes[0].id) == (Verdict.UNDECIDED, "special")
    assert judged([WAIT, error, end], general, special).causes[0].id == "general"
