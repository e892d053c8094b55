"""Measures how answers degrade as dumps are lost and rings shrink, on the same jobs at every degree of damage.

*Right* names exactly the culprits, or gives the best verdict if no rank is to blame. *Undecided* blames no rank
although one is to blame (fair if the dumps cannot show it), or doubts a healthy job. Anything else is *wrong*.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ddx_evals.scores.records import RecordCase, Score
from ddx_evals.terminal.tables import ScoreTable
from ddx_tools.model.diagnosis import Verdict

LOST = (0.0, 0.05, 0.1, 0.25, 0.5)
RINGS = (2000, 256, 64, 16)
_BAR = 40
"""The width of the bar for all jobs, in characters."""


@dataclass(frozen=True)
class Point:
    """Answers about all jobs at one degree of damage."""

    name: str
    right: int
    undecided: int
    wrong: int

    @property
    def jobs(self) -> int:
        """The number of jobs."""
        return self.right + self.undecided + self.wrong


def settings(wanted: Sequence[RecordCase]) -> dict[str, list[RecordCase]]:
    """The same jobs at each degree of damage: lost dumps at the jobs' own ring sizes; smaller rings with all dumps."""
    damaged = {f"{lost:.0%} of the dumps lost": [replace(case, lost=lost) for case in wanted] for lost in LOST}
    shrunk = {f"rings of {ring} entries": [replace(case, lost=0.0, ring=ring) for case in wanted] for ring in RINGS}
    return damaged | shrunk


def point(name: str, found: Iterable[Score]) -> Point:
    """Count the answers at one degree of damage."""
    kept = list(found)
    undecided = [each for each in kept if each.answer.verdict == Verdict.UNDECIDED and not each.exact]
    right = [each for each in kept if each.right and each not in undecided]
    return Point(name, len(right), len(undecided), len(kept) - len(right) - len(undecided))


def table(points: Iterable[Point]) -> ScoreTable:
    """The curve as a table, with a bar for each point: `#` right, `.` undecided, `!` wrong."""
    rows = []
    for each in points:
        shares = [count / each.jobs for count in (each.right, each.undecided, each.wrong)]
        bar = "".join(sign * round(share * _BAR) for sign, share in zip("#.!", shares, strict=True))
        rows.append([each.name, *(f"{share:.1%}" for share in shares), f"`{bar}`"])
    return ScoreTable(["", "right", "undecided", "wrong", ""], rows, text_behind=1)
