"""Separates logs of several runs in one folder: an earlier run's log explains nothing about a later run.

Two logs are from two runs if they name two scheduler jobs, or if one ends long before the other begins: longer than the
clocks and time zones of two hosts can differ. Within one log there is one clock: what is reported hours after a failure
belongs to another attempt, and a rank that speaks on after an exception has survived it.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ddx_tools.analysis.log_events.log_event import OWN_ENDS, REPORTED_ENDS
from ddx_tools.analysis.ranks.first_calls import CLOCKS_APART_S
from ddx_tools.probes.job_log.log_facts import LogFacts

_ATTEMPTS_APART_S = 2 * 3600.0
_SPEAKS_ON_S = 600.0
"""What a process prints this long after an exception is no part of its end."""
_JOB = re.compile(r"(?:^|[/_.-])(?:slurm|job|pbs|lsf)[-_.]?(?P<job>\d{3,12})(?=[_.-]|$)", re.IGNORECASE)
_FAILURES = frozenset({"traceback", "watchdog", "gloo", "exit", "failure_summary", "fatal_stack", "signature"})
_GLOG = re.compile(r"\[?[IWEF](?P<month>\d\d)(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d)")
_SOME_TIME_S = 1_720_000_000.0
"""For logs in which nothing states a year: in the middle of one."""

Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class LogSpan:
    """The first and last time in a log, in seconds since the epoch on its host's clock, and the job it belongs to."""

    source: str
    job: str | None
    first_s: float
    last_s: float


def mark_earlier_runs(events: Rows, paths: Mapping[str, str], facts: Mapping[str, LogFacts]) -> list[str]:
    """Set `superseded` in the rows of `log_events` from an earlier run, and mark exceptions that ranks survived.

    `paths` and `facts`: the file of each source, and what it says about itself. Returns the files that are entirely
    from an earlier run. Nothing is marked in logs without times, or in error files and exit notes.
    """
    by_source: dict[str, list[dict[str, Any]]] = {source: [] for source in paths}
    for row in events:
        if row["source"] in paths:
            by_source[row["source"]].append(row)
    spans = [
        LogSpan(source, _job(paths[source]), min(times), max(times))
        for source, rows in by_source.items()
        if (times := _times(rows, facts.get(source, LogFacts())))
    ]
    earlier = _earlier(sorted(spans, key=lambda span: span.first_s))
    about_s = max((span.last_s for span in spans), default=_SOME_TIME_S)
    for source, rows in by_source.items():
        for row in rows:
            row["superseded"] = row["superseded"] or source in earlier
        _mark_before_reports(rows, about_s)
        _mark_outlived(rows, facts.get(source, LogFacts()))
    return sorted(paths[source] for source in earlier)


def _times(rows: Rows, facts: LogFacts) -> list[float]:
    times = [row["time_s"] for row in rows] + [facts.first_s, facts.last_s]
    return [time_s for time_s in times if time_s is not None]


def _job(path: str) -> str | None:
    """The scheduler job number in a file name: `slurm-1001.out`."""
    found = _JOB.search(path.rpartition("/")[2])
    return found["job"] if found else None


# --- runs at different times


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


# --- attempts, and survived exceptions, within one log


@dataclass(frozen=True, order=True)
class _Moment:
    """A place in a log, and its time: with a year, or from a header whose year and zone are unknown."""

    line: int
    time_s: float
    has_year: bool = True

    def is_attempts_after(self, failure: _Moment) -> bool:
        """Whether it is so long after a failure that it belongs to another attempt."""
        apart_s = _ATTEMPTS_APART_S if self.has_year == failure.has_year else CLOCKS_APART_S
        return self.line > failure.line and self.time_s - failure.time_s > apart_s


def _mark_before_reports(rows: Rows, about_s: float) -> None:
    """Mark failures in a log that are followed, hours later, by steps or by waits that began then."""
    timed = sorted((row["source_line"], row["time_s"]) for row in rows if row["time_s"] is not None)
    lines = [line for line, _ in timed]
    failures: list[tuple[dict[str, Any], _Moment]] = []
    last: dict[tuple[str, bool], _Moment] = {}
    for row in rows:
        if row["kind"] not in _FAILURES and row["kind"] != "step":
            continue
        details, at = json.loads(row["details"]), bisect_right(lines, row["source_line"])
        moment = _moment(row, details, about_s)
        began = None if moment is None else replace(moment, time_s=moment.time_s - _waited_s(details))
        if began is not None and row["kind"] in ("step", "watchdog", "gloo"):
            last[row["kind"], began.has_year] = max(began, last.get((row["kind"], began.has_year), began))
        if moment is None and at:
            moment = _Moment(row["source_line"], timed[at - 1][1])
        if moment is not None and row["kind"] in _FAILURES:
            failures.append((row, moment))
    for row, moment in failures:
        row["superseded"] |= any(one.is_attempts_after(moment) for one in last.values())


def _moment(row: Mapping[str, Any], details: Mapping[str, Any], about_s: float) -> _Moment | None:
    """The time of a row: its own, of a dated line just above it, or of a header without a year, near `about_s`."""
    if (time_s := row["time_s"] if row["time_s"] is not None else details.get("after_s")) is not None:
        return _Moment(row["source_line"], float(time_s))
    found = _GLOG.search(str(details.get("quote", ""))[:200])
    if found is None:
        return None
    times = []
    for year in range(-1, 2):
        with suppress(ValueError):
            day = dt.date(
                dt.datetime.fromtimestamp(about_s, dt.UTC).year + year, int(found["month"]), int(found["day"])
            )
            times.append(dt.datetime.fromisoformat(f"{day}T{found['time']}Z").timestamp())
    nearest = min(times, key=lambda time_s: abs(time_s - about_s), default=None)
    return None if nearest is None else _Moment(row["source_line"], nearest, has_year=False)


def _waited_s(details: Mapping[str, Any]) -> float:
    """How long a wait lasted that a watchdog reports."""
    told = details.get("elapsed_ms") or details.get("timeout_ms") or 0
    return float(told) / 1000 if str(told).isdigit() else 0.0


def _mark_outlived(rows: Rows, facts: LogFacts) -> None:
    """Mark tracebacks after which their rank's program speaks on for long, unless something reports the rank's end."""
    if not facts.spoke_s or any(row["kind"] in (*REPORTED_ENDS, *OWN_ENDS) for row in rows):
        return
    own = {row["rank"] for row in rows} - {None}
    for row in rows:
        if row["kind"] != "traceback" or row["rank"] is None:
            continue
        details = json.loads(row["details"])
        spoke_s = facts.spoke_s.get(row["rank"], facts.spoke_s.get(None) if own == {row["rank"]} else None)
        raised_s = row["time_s"] if row["time_s"] is not None else details.get("after_s")
        if None not in (spoke_s, raised_s) and spoke_s - raised_s > _SPEAKS_ON_S:
            row["details"] = json.dumps({**details, "outlived": True}, ensure_ascii=False)
