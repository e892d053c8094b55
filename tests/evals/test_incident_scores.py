"""The scorer of causes alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_incidents import ddx_evals

from ddx_evals.incidents import IncidentError, Truth, named_incidents, truth_of
from ddx_evals.scores.causes import judged
from ddx_tools.model.diagnosis import CandidateCause, Diagnosis, Level, NextCheck, Party, Verdict

# --- the scorer

TRUTH = Truth(cause="port-in-use", accept=("rank-crashed",), deciding_fact="who?", deciding_words="ss -l|listens")


def said(verdict: Verdict, *causes: str, question: str = "") -> Diagnosis:
    candidates = [
        CandidateCause(
            id=cause,
            title="",
            category="startup",
            probability=0.5,
            level=Level.SUPPORTED,
            culprits=Party(),
            supports=[],
            against=[],
        )
        for cause in causes
    ]
    check = NextCheck(probe="ask", question=question) if question else None
    return Diagnosis(verdict=verdict, headline="", causes=candidates, next_check=check)


def test_an_accepted_cause_is_right() -> None:
    assert judged("x", TRUTH, said(Verdict.DIAGNOSED, "rank-crashed")).first
    assert not judged("x", TRUTH, said(Verdict.DIAGNOSED, "rank-crashed")).confidently_wrong


def test_only_a_diagnosis_is_confidently_wrong() -> None:
    assert judged("x", TRUTH, said(Verdict.DIAGNOSED, "uneven-data", "port-in-use")).confidently_wrong
    undecided = judged("x", TRUTH, said(Verdict.UNDECIDED, "uneven-data", "port-in-use"))
    assert (undecided.confidently_wrong, undecided.first, undecided.within_two) == (False, False, True)


def test_an_undecided_answer_is_held_to_its_question() -> None:
    assert judged("x", TRUTH, said(Verdict.UNDECIDED, question="Who listens there?")).well_asked
    assert judged("x", TRUTH, said(Verdict.UNDECIDED, question="Which rank?")).well_asked is False
    assert judged("x", TRUTH, said(Verdict.DIAGNOSED, "port-in-use", question="Which rank?")).well_asked is None


def test_where_nothing_can_be_told_undecided_is_right_and_a_diagnosis_wrong() -> None:
    nothing = Truth(cause="undecided", deciding_fact="", deciding_words="stack")
    assert judged("x", nothing, said(Verdict.UNDECIDED)).first
    assert judged("x", nothing, said(Verdict.DIAGNOSED, "port-in-use")).confidently_wrong


def test_incidents_are_scored_a_row_each_with_a_summary() -> None:
    (incident,) = named_incidents(["public/21-bind-29500-second-job"])
    code, printed = ddx_evals("scores", "causes", incident.directory)
    assert code == 0
    (row,) = [line for line in printed.splitlines() if incident.id in line]
    assert row.split()[:4] == [incident.id, "port-in-use", "diagnosed", "first"]
    assert printed.splitlines()[-1].startswith("incidents 1, first 1, within two 1, confidently wrong 0")
    code, printed = ddx_evals("scores", "causes", incident.directory, "--json")
    assert code == 0
    assert json.loads(printed)["summary"]["first"] == 1


def test_a_directory_without_incidents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IncidentError, match=r"no truth\.yaml below"):
        ddx_evals("scores", "causes", tmp_path)


def test_a_truth_that_lacks_something_is_named(tmp_path: Path) -> None:
    (tmp_path / "truth.yaml").write_text("cause: port-in-use\n")
    with pytest.raises(IncidentError, match="deciding_fact"):
        truth_of(tmp_path)
