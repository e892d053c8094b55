"""The accepted outcomes of all incidents, `evals/incidents/expected.tsv`, and the differences from them.

The table has one line per case: the last accepted answer, and how right it was. A case is *lost* if its answer is now
worse, *won* if better, and *other* if the answer changed but the truth cannot say which is better.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, fields
from enum import StrEnum
from pathlib import Path

from ddx_evals.gate.judgement import CaseOutcome, Grade
from ddx_evals.incidents import Incident
from ddx_tools.knowledge.resources import incidents_dir

TABLE = "expected.tsv"
COLUMNS = tuple(field.name for field in fields(CaseOutcome))
_GRADES = list(Grade)


class Change(StrEnum):
    """How the outcome of a case changed."""

    LOST = "lost"
    OTHER = "other"
    WON = "won"


def changes(expected: Mapping[str, CaseOutcome], now: Iterable[CaseOutcome]) -> Iterator[tuple[Change, str]]:
    """Yield the differences from the table, each with a line that describes it."""
    for outcome in now:
        before = expected.get(outcome.case)
        if before is None:
            answer = "; ".join(f"{name} {value}" for name, value in zip(COLUMNS[1:], astuple(outcome)[1:], strict=True))
            yield Change.OTHER, f"{outcome.case} is not in {TABLE}: {answer}"
        elif outcome != before:
            yield _change(before, outcome), _difference(before, outcome)


def gone(expected: Iterable[str], cases: Iterable[str]) -> Iterator[tuple[Change, str]]:
    """Yield the cases in the table that no longer exist."""
    for case in sorted(set(expected) - set(cases)):
        yield Change.LOST, f"{case} is in {TABLE} but does not exist"


def _change(before: CaseOutcome, now: CaseOutcome) -> Change:
    better = {
        _GRADES.index(Grade(before.grade)) - _GRADES.index(Grade(now.grade)),
        _less(before.localisation, now.localisation),
        _less(before.place_right, now.place_right),
    }
    if min(better) < 0:
        return Change.LOST
    return Change.WON if max(better) > 0 else Change.OTHER


def _less(before: str, now: str) -> int:
    """1 if the second value is better, -1 if worse. `no` < `yes` and `0.30` < `1.00` also in string order."""
    return (now > before) - (now < before) if "-" not in (before, now) else 0


def _difference(before: CaseOutcome, now: CaseOutcome) -> str:
    pairs = zip(COLUMNS[1:], astuple(before)[1:], astuple(now)[1:], strict=True)
    return f"{now.case}: " + "; ".join(f"{name} {was} → {is_}" for name, was, is_ in pairs if was != is_)


def table_file() -> Path:
    """The path of the table."""
    return incidents_dir() / TABLE


def read_table(file: Path) -> dict[str, CaseOutcome]:
    """Read the accepted outcomes by case. Raises ValueError for a line with a wrong number of columns."""
    lines = file.read_text(encoding="utf-8").splitlines()[1:]
    outcomes = [CaseOutcome(*line.split("\t")) for line in lines]
    return {outcome.case: outcome for outcome in outcomes}


def write_table(file: Path, outcomes: Iterable[CaseOutcome]) -> None:
    """Write the outcomes sorted by case, so that a diff of the file shows what changed."""
    rows = [COLUMNS, *sorted(map(astuple, outcomes))]
    file.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def cases_of(incidents: Iterable[Incident]) -> list[str]:
    """The names of all cases of some incidents."""
    return [f"{incident.split}/{incident.id}/{view}" for incident in incidents for view in incident.views]
