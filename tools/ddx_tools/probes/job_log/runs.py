"""Logs of several runs in one folder: what an earlier run wrote explains nothing of a later one.

Two logs are of two runs if they name two jobs of a scheduler, or if the one ends long before the other begins: longer
than the clocks and time zones of two hosts can be apart. Within one log the clock is one: ranks that make steps hours
behind a failure are those of another attempt, or went on.
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
    """From when to when a log tells times, in seconds since the epoch by its host's clock, and whose it is."""

    source: str
    job: str | None
    first_s: float
    last_s: float


def mark_earlier_runs(events: Rows, paths: Mapping[str, str]) -> list[str]:
    """Set `superseded` of the rows of `log_events` that are of an earlier run. `paths`: the file of each source.

    Returns the files that are wholly of an earlier run. Nothing is marked without times, and in what a rank wrote of
    its own end (error files, exit notes).
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
    """Sources of runs that were over when the last one began; the spans come by their beginning."""
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
    """The number of a scheduler's job that a file's name holds: `slurm-1001.out`."""
    found = _JOB.search(path.rpartition("/")[2])
    return found["job"] if found else None


def _mark_before_steps(rows: Rows) -> None:
    """Failures of one log hours behind which ranks make steps."""
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
