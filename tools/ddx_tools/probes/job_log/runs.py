"""Separates logs of several runs in one folder: an earlier run's log explains nothing about a later run.

Two logs are from two runs if they name two scheduler jobs, or if one ends long before the other begins: longer than the
clocks and time zones of two hosts can differ. Within one log there is one clock: ranks that make steps hours after a
failure belong to another attempt, or continued.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddx_tools.analysis.ranks.first_calls import CLOCKS_APART_S

_ATTEMPTS_APART_S = 2 * 3600.0
_JOB = re.compile(r"(?:^|[/_.-])(?:slurm|job|pbs|lsf)[-_.]?(?P<job>\d{3,12})(?=[_.-]|$)", re.IGNORECASE)
_FAILURES = frozenset({"traceback", "watchdog", "gloo", "exit", "failure_summary", "fatal_stack", "signature"})

Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class LogSpan:
    """The first and last time in a log, in seconds since the epoch on its host's clock, and the job it belongs to."""

    source: str
    job: str | None
    first_s: float
    last_s: float


def mark_earlier_runs(events: Rows, paths: Mapping[str, str]) -> list[str]:
    """Set `superseded` in the rows of `log_events` from an earlier run. `paths`: the file of each source.

    Returns the files that are entirely from an earlier run. Nothing is marked in logs without times, or in error files
    and exit notes.
    """
    by_source: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in events:
        if row["source"] in paths:
            by_source[row["source"]].append(row)
    spans = [
        LogSpan(source, _job(paths[source]), min(times), max(times))
        for source, rows in by_source.items()
        if (times := [row["time_s"] for row in rows if row["time_s"] is not None])
    ]
    earlier = _earlier(sorted(spans, key=lambda span: span.first_s))
    for source, rows in by_source.items():
        for row in rows:
            row["superseded"] = row["superseded"] or source in earlier
        _mark_before_steps(rows)
    return sorted(paths[source] for source in earlier)


def _earlier(spans: Sequence[LogSpan]) -> set[str]:
    """The sources of runs that were over when the last one began; the spans are sorted by start."""
    earlier: set[str] = set()
    runs: list[LogSpan] = []
    for span in spans:
        if runs and _is_another_run(runs, span):
            earlier |= {one.source for one in runs}
            runs = []
        runs.append(span)
    return earlier


def _is_another_run(runs: Sequence[LogSpan], span: LogSpan) -> bool:
    apart_s = span.first_s - max(one.last_s for one in runs)
    other_job = span.job is not None and all(one.job not in (None, span.job) for one in runs)
    return apart_s > CLOCKS_APART_S or (other_job and apart_s > 0)


def _job(path: str) -> str | None:
    """The scheduler job number in a file name: `slurm-1001.out`."""
    found = _JOB.search(path.rpartition("/")[2])
    return found["job"] if found else None


def _mark_before_steps(rows: Rows) -> None:
    """Mark failures in a log that are followed, hours later, by steps."""
    timed = sorted((row["source_line"], row["time_s"]) for row in rows if row["time_s"] is not None)
    steps = [(row["source_line"], row["time_s"]) for row in rows if row["kind"] == "step" and row["time_s"] is not None]
    if not steps:
        return
    last_line, last_s = max(steps)
    lines = [line for line, _ in timed]
    for row in rows:
        if row["kind"] in _FAILURES and row["source_line"] < last_line:
            at = bisect_right(lines, row["source_line"])
            told_s = row["time_s"] if row["time_s"] is not None else timed[at - 1][1] if at else None
            row["superseded"] |= told_s is not None and last_s - told_s > _ATTEMPTS_APART_S
