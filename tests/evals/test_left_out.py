"""What is left of an answer when what only its own incident shows is switched off."""

from __future__ import annotations

import pytest

from ddx_evals.incidents import named_incidents
from ddx_evals.scores.left_out import (
    SeenIncident,
    calibration,
    clauses,
    grade,
    grades,
    left_out_answers,
    look_at,
    without,
    worth,
)
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.model.diagnosis import Diagnosis, Verdict

PORT = "public/21-bind-29500-second-job"


@pytest.fixture(scope="module")
def seen() -> list[SeenIncident]:
    return [look_at(incident) for incident in named_incidents([PORT, "blind/second-user-same-machine"])]


def test_alone_an_incident_teaches_nothing_about_itself(seen: list[SeenIncident]) -> None:
    ((one, said),) = left_out_answers(seen[:1])
    assert grade(one.truth, one.found.diagnose()) == "exact"
    assert grade(one.truth, said) == "open"


def test_what_another_family_shows_too_stays(seen: list[SeenIncident]) -> None:
    assert [grade(one.truth, said) for one, said in left_out_answers(seen)] == ["exact", "exact"]


def test_a_page_without_a_clause_blames_nobody_by_it() -> None:
    pages = load_playbooks()
    every = {name for name, _ in clauses(pages) if name[0] == "process-stopped"}
    bare = without(pages, every).causes["process-stopped"]
    assert (bare.decides, bare.culprits) == ([], [])
    assert without(pages, set()).causes == pages.causes


def test_the_tables_count_every_incident(seen: list[SeenIncident]) -> None:
    counted = grades("as they are", [(one, one.found.diagnose()) for one in seen])
    rows = [dict(zip(counted.columns, row, strict=True)) for row in counted.rows]
    assert [(row["exact"], row["of"]) for row in rows if row["split"] == "all"] == [("2", "2")]
    told = {tuple(row[:3]): row[3:] for row in worth(seen).rows}
    assert told["port-in-use", "decides", "0"][0] == "2"


def test_an_answer_above_the_truth_is_a_node(seen: list[SeenIncident]) -> None:
    truth = seen[0].truth
    above = Diagnosis(verdict=Verdict.DIAGNOSED, headline="it never formed")
    assert grade(truth, above) == "wrong"


def test_of_a_job_that_is_well_nothing_may_be_suspected(seen: list[SeenIncident]) -> None:
    well = seen[0].truth.model_copy(update={"cause": "healthy", "accept": ()})
    nothing = Diagnosis(verdict=Verdict.UNDECIDED, headline="not enough evidence")
    assert grade(well, nothing) == grade(well, nothing.model_copy(update={"verdict": Verdict.HEALTHY})) == "exact"
    suspected = nothing.model_copy(update={"causes": seen[0].found.judge().causes[:1]})
    assert grade(well, suspected) == "open"
    assert grade(well, suspected.model_copy(update={"verdict": Verdict.DIAGNOSED})) == "wrong"


def test_what_was_told_is_held_against_what_is_right(seen: list[SeenIncident]) -> None:
    rows = calibration("", [(one, one.found.judge()) for one in seen]).rows
    assert [row[3:] for row in rows if row[0] == "first cause"] == [["1.00", "2"]]
