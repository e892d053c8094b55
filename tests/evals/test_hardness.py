"""Hardness follows from measures: what a line or a few pages give away, and how much there is to read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_incidents import copied, ddx_evals, recorded

from ddx_evals.incidents import IncidentError, load_incident, named_incidents
from ddx_evals.incidents.truth import Hardness
from ddx_evals.scores.hardness import CONTEXT_TOKENS, Measures, measured, tagged

NEEDLE = Measures(
    tokens=CONTEXT_TOKENS + 1,
    files=300,
    files_with_key_fact=1,
    grep_passes=False,
    pages_pass=False,
    fact_on_pages=False,
    misleading=False,
    fooled=False,
    open=False,
)


def test_one_file_among_hundreds_that_no_window_holds_is_hard() -> None:
    assert NEEDLE.hardness == Hardness(tag="hard", measured_by="200k tokens in 300 files, needle")


def test_the_same_is_medium_where_it_fits_into_a_window() -> None:
    assert replace(NEEDLE, tokens=CONTEXT_TOKENS).hardness.tag == "medium"


def test_much_to_read_alone_is_not_hard() -> None:
    assert replace(NEEDLE, files_with_key_fact=299).hardness.tag == "medium"


@pytest.mark.parametrize("trap", ["misleading", "fooled", "open"])
def test_each_trap_makes_much_to_read_hard(trap: str) -> None:
    assert replace(NEEDLE, files_with_key_fact=299, **{trap: True}).hardness.tag == "hard"


@pytest.mark.parametrize("settled", ["grep_passes", "pages_pass", "fact_on_pages"])
def test_what_a_line_or_a_page_settles_is_easy_whatever_else_holds(settled: str) -> None:
    assert replace(NEEDLE, misleading=True, fooled=True, **{settled: True}).hardness.tag == "easy"


def test_a_line_that_everybody_knows_is_easy() -> None:
    (incident,) = named_incidents(["public/21-bind-29500-second-job"])
    assert measured(incident).grep_passes


def test_a_recording_of_four_ranks_is_not_hard() -> None:
    assert measured(recorded("stopped")).hardness.tag == "medium"


def test_hundreds_of_files_of_which_one_decides_are_hard() -> None:
    (incident,) = named_incidents(["dev/3b9f60"])
    found = measured(incident)
    assert found.needle
    assert found.hardness == incident.truth.hardness


def test_the_command_writes_the_tag_and_changes_nothing_else(tmp_path: Path) -> None:
    directory = copied(recorded("stopped"), tmp_path)
    before = load_incident(directory).truth
    code, said = ddx_evals("scores", "hardness", directory, "--write")
    assert (code, "medium" in said) == (0, True)
    after = load_incident(directory).truth
    assert after.hardness
    assert after.model_copy(update={"hardness": before.hardness}) == before


def test_what_was_brought_to_a_thread_keeps_its_file(tmp_path: Path) -> None:
    (incident,) = named_incidents(["public/21-bind-29500-second-job"])
    with pytest.raises(IncidentError, match="it has no provenance"):
        tagged(incident, Hardness(tag="easy", measured_by="grep"))
