"""Several attempts of a job in one log: restarts by its launcher, and runs whose output was appended.

Nothing announces a restart. It is known by an end that comes twice: an agent sees its ranks fail again, or a summary
lists a rank that another one has listed. Summaries of several hosts list different ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ddx_tools.parsers.launchers.new_starts import NewStart


@dataclass(frozen=True)
class End:
    """The end of an attempt, as a launcher reports it."""

    line: int
    agent: Any = None
    """Who saw ranks fail, as far as the line says; of a summary, None."""
    ranks: frozenset[int] | None = None
    """The ranks that a summary lists."""


def attempt_bounds(ends: Iterable[End]) -> list[int]:
    """The lines behind which another attempt begins."""
    bounds: set[int] = set()
    agents: set[Any] = set()
    ranks: set[int] = set()
    last = last_summary = 0
    for end in sorted(ends, key=lambda end: end.line):
        if end.ranks is None:
            if end.agent in agents:
                bounds.add(last)
                agents.clear()
            agents.add(end.agent)
        else:
            if end.ranks & ranks:
                bounds.add(last_summary)
                ranks.clear()
            ranks |= end.ranks
            last_summary = end.line
        last = end.line
    return sorted(bounds)


def last_start(starts: Sequence[NewStart], failures: Iterable[int]) -> int | None:
    """The line with which the job was last started again; None if nothing shows that it was.

    A command that a shell traces starts it again if something failed above (`failures`: lines), and if it is not
    another program than the one before.
    """
    first_failure = min(failures, default=None)
    programs: set[str] = set()
    last = None
    for start in starts:
        if start.program is None:
            last = start.line
            continue
        again = not programs or start.program in programs
        if again and first_failure is not None and first_failure < start.line:
            last = start.line
        programs.add(start.program)
    return last
