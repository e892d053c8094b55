"""The incident gate: every incident, in every view, is judged as it was when its outcome was accepted, or better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from ddx_evals.gate.handed_in import handed_in_cases
from ddx_evals.gate.judgement import CaseOutcome, judge
from ddx_evals.gate.table import Change, cases_of, changes, gone, read_table, table_file, write_table
from ddx_evals.incidents import Incident, named_incidents

PARTS = 24


@cache
def incidents() -> list[Incident]:
    return named_incidents([])


@pytest.mark.parametrize("part", range(PARTS))
def test_no_incident_is_lost(part: int, record_property: Callable[[str, object], None]) -> None:
    judged = [judge(incident) for incident in incidents()[part::PARTS]]
    found = list(changes(read_table(table_file()), [outcome for each in judged for outcome in each.outcomes]))
    for change, line in found:
        if change is Change.WON:
            record_property("won", line)
    unwanted = [f"{change}: {line}" for change, line in found if change is not Change.WON]
    assert not unwanted, "\n".join(["`make accept-incidents` takes over what is no loss", *unwanted])
    assert not (doubts := [doubt for each in judged for doubt in each.doubts]), "\n".join(doubts)


def test_the_table_holds_no_case_that_is_gone() -> None:
    assert list(gone(read_table(table_file()), cases_of(incidents()))) == []


# --- the comparison itself

BEFORE = CaseOutcome("dev/0a/full", "diagnosed", "uneven-data", "rank 2", "train.py:7", "right", "1.00", "yes")


@pytest.mark.parametrize(
    ("now", "became"),
    [
        ({"grade": "open", "verdict": "undecided"}, Change.LOST),
        ({"localisation": "0.60", "culprits": "rank 1"}, Change.LOST),
        ({"place_right": "no", "place": "train.py:9"}, Change.LOST),
        ({"grade": "passed", "place_right": "no"}, Change.LOST),
        ({"grade": "passed"}, Change.WON),
        ({"place": "loop.py:9"}, Change.OTHER),
    ],
)
def test_a_case_is_lost_if_anything_is_worse(now: dict[str, str], became: Change) -> None:
    ((change, line),) = changes({BEFORE.case: BEFORE}, [replace(BEFORE, **now)])
    assert change is became
    assert line.startswith("dev/0a/full: ")
    assert all(f"{name} " in line and f"→ {value}" in line for name, value in now.items())


def test_a_new_case_is_told_and_one_that_is_gone_is_lost() -> None:
    assert [change for change, _ in changes({}, [BEFORE])] == [Change.OTHER]
    assert list(changes({BEFORE.case: BEFORE}, [BEFORE])) == []
    assert [change for change, _ in gone([BEFORE.case], [])] == [Change.LOST]


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_table(tmp_path / "table", [BEFORE, replace(BEFORE, case="dev/00/full", place="-")])
    assert list(read_table(tmp_path / "table").values()) == [replace(BEFORE, case="dev/00/full", place="-"), BEFORE]


def test_of_twenty_open_incidents_seventeen_are_right_with_what_a_reader_hands_in() -> None:
    """The gate holds each of them against this file."""
    handed = handed_in_cases().values()
    assert len(handed) == 20
    assert sum(each.right for each in handed) >= 17
