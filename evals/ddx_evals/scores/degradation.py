"""How answers degrade as dumps are lost and rings shrink: `python -m ddx_evals.degradation`, the same jobs every time.

*Right* names exactly the culprits, or gives the best verdict where nobody is to blame. *Undecided* blames nobody though
somebody is to blame, which is fair where the dumps cannot tell, or doubts a healthy job. All else is *wrong*.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ddx_evals.record_scores import Case, Score, cases, scores
from ddx_tools.model import Verdict

LOST = (0.0, 0.05, 0.1, 0.25, 0.5)
RINGS = (2000, 256, 64, 16)
_BAR = 40
"""Characters that stand for all jobs."""


@dataclass(frozen=True)
class Point:
    """Answers about all jobs at one degree of damage."""

    name: str
    right: int
    undecided: int
    wrong: int

    @property
    def jobs(self) -> int:
        """How many there were."""
        return self.right + self.undecided + self.wrong


def settings(wanted: Sequence[Case]) -> dict[str, list[Case]]:
    """The same jobs at each degree of damage: dumps lost from rings of the size that the job chose, and rings with all
    dumps."""
    damaged = {f"{lost:.0%} of the dumps lost": [replace(case, lost=lost) for case in wanted] for lost in LOST}
    shrunk = {f"rings of {ring} entries": [replace(case, lost=0.0, ring=ring) for case in wanted] for ring in RINGS}
    return damaged | shrunk


def point(name: str, found: Iterable[Score]) -> Point:
    """Count answers."""
    kept = list(found)
    undecided = [each for each in kept if each.answer.verdict == Verdict.UNDECIDED and not each.exact]
    right = [each for each in kept if each.right and each not in undecided]
    return Point(name, len(right), len(undecided), len(kept) - len(right) - len(undecided))


def table(points: Iterable[Point]) -> str:
    """The curve as Markdown, with a bar for each point: `#` right, `.` undecided, `!` wrong."""
    lines = ["| | right | undecided | wrong | |", "|---|---|---|---|---|"]
    for each in points:
        shares = [count / each.jobs for count in (each.right, each.undecided, each.wrong)]
        bar = "".join(sign * round(share * _BAR) for sign, share in zip("#.!", shares, strict=True))
        lines.append(f"| {each.name} | " + " | ".join(f"{share:.1%}" for share in shares) + f" | `{bar}` |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Score the jobs at each degree of damage and print the table, line by line."""
    parser = ArgumentParser(prog="python -m ddx_evals.degradation", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=92, help="how many, all kinds in turn")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--largest", type=int, default=64, metavar="RANKS", help="leave out the seeds of larger jobs")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args(arguments)
    wanted = cases(asked.jobs, asked.first_seed, largest=asked.largest)
    points = []
    for name, each in settings(wanted).items():
        points.append(point(name, scores(each, asked.processes)))
        print(points[-1], file=sys.stderr, flush=True)
    print(table(points))
    return 0


if __name__ == "__main__":
    sys.exit(main())
