"""Separates logs of several runs and jobs in one folder: the log of one explains nothing about another.

Two logs are from two jobs if they state different job numbers, addresses of rank 0 or world sizes, at whatever times.
They are from two runs if one ends long before the other begins: longer than the clocks and time zones of two hosts can
differ. Within one log there is one clock: what is reported hours after a failure belongs to another attempt, and a rank
that speaks on after an exception has survived it.
"""

from __future__ import annotations

import datetime as dt
import json
import posixpath
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ddx_tools.analysis.log_events.log_event import OWN_ENDS, REPORTED_ENDS
from ddx_tools.analysis.ranks.first_calls import CLOCKS_APART_S
from ddx_tools.parsers.logs.log_lines import file_identity
from ddx_tools.probes.job_log.log_facts import LogFacts

_ATTEMPTS_APART_S = 2 * 3600.0
_KINDS = ("job", "MASTER_ADDR", "world size")
"""What logs state about their job, most telling first: in one job, equal numbers settle it."""
_SPEAKS_ON_S = 600.0
"""What a process prints this long after an exception is no part of its end."""
_JOB = re.compile(r"(?:^|[/_.-])(?:slurm|job|pbs|lsf)[-_.]?(?P<job>\d{3,12})(?=[/_.-]|$)", re.IGNORECASE)
_FAILURES = frozenset({"traceback", "watchdog", "gloo", "exit", "failure_summary", "fatal_stack", "signature"})
_GLOG = re.compile(r"\[?[IWEF](?P<month>\d\d)(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d)")
_SOME_TIME_S = 1_720_000_000.0
"""For logs in which nothing states a year: in the middle of one."""

Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class LogSpan:
    """The first and last time in a log, in seconds since the epoch on its host's clock, and what it belongs to."""

    source: str
    stated: Mapping[str, str]
    first_s: float | None
    last_s: float | None

    @property
    def job(self) -> str | None:
        """The scheduler's job number."""
        return self.stated.get("job")


@dataclass(frozen=True)
class OtherRuns:
    """Files that are entirely from an earlier run, and lines about files from another job."""

    earlier: list[str]
    other_jobs: list[str]


def mark_other_runs(events: list[dict[str, Any]], paths: Mapping[str, str], facts: Mapping[str, LogFacts]) -> OtherRuns:
    """Set `superseded` in the rows of `log_events` from an earlier run, and remove those of another job.

    `paths` and `facts`: the file of each source, and what it says about itself. Nothing is marked in logs without
    times, or in error files and exit notes.
    """
    by_source: dict[str, list[dict[str, Any]]] = {source: [] for source in paths}
    for row in events:
        if row["source"] in paths:
            by_source[row["source"]].append(row)
    sizes = _believed_sizes(by_source, facts)
    named = _named_jobs(paths)
    spans = {
        source: _span(source, paths[source], rows, facts.get(source, LogFacts()), sizes, named.get(source))
        for source, rows in by_source.items()
    }
    timed = [span for span in spans.values() if span.first_s is not None]
    earlier = _earlier(sorted(timed, key=lambda span: span.first_s or 0.0))
    now = [span for span in spans.values() if span.source not in earlier]
    others = _of_other_jobs(now, by_source)
    about_s = max((span.last_s for span in now if span.last_s is not None), default=_SOME_TIME_S)
    for source, rows in by_source.items():
        for row in rows:
            row["superseded"] = row["superseded"] or source in earlier
        _mark_before_reports(rows, about_s)
        _mark_outlived(rows, facts.get(source, LogFacts()))
    events[:] = [row for row in events if row["source"] not in others]
    return OtherRuns(
        sorted(paths[source] for source in earlier), sorted(f"{paths[source]}: {why}" for source, why in others.items())
    )


def _named_jobs(paths: Mapping[str, str]) -> dict[str, str]:
    """The scheduler's job number of each source: in file names (`slurm-1001.out`) or, if in none, in folders' names."""
    common = posixpath.commonprefix(list(paths.values())).rpartition("/")[0]
    files = {source: path.rpartition("/")[2] for source, path in paths.items()}
    for names in (files, {source: path.removeprefix(common) for source, path in paths.items()}):
        found = {source: list(_JOB.finditer(name))[-1:] for source, name in names.items()}
        if any(found.values()):
            return {source: last["job"] for source, matches in found.items() for last in matches}
    return {}


def _span(source: str, path: str, rows: Rows, facts: LogFacts, sizes: set[str], job: str | None) -> LogSpan:
    times = [row["time_s"] for row in rows if row["time_s"] is not None]
    times += [time_s for time_s in (facts.first_s, facts.last_s) if time_s is not None]
    stated = {kind: value for kind, value in facts.stated.items() if kind != "world size" or value in sizes}
    if file_identity(path).attempt is not None:  # A launcher may restart a job on other hosts, or on fewer.
        stated = {kind: value for kind, value in stated.items() if kind == "job"}
    if job:
        stated["job"] = job
    return LogSpan(source, stated, min(times, default=None), max(times, default=None))


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
    apart_s = (span.first_s or 0.0) - max(one.last_s or 0.0 for one in runs)
    other_job = span.job is not None and all(one.job not in (None, span.job) for one in runs)
    return apart_s > CLOCKS_APART_S or (other_job and apart_s > 0)


# --- jobs at the same time


def _believed_sizes(by_source: Mapping[str, Rows], facts: Mapping[str, LogFacts]) -> set[str]:
    """The world sizes that no log with higher ranks states: others are sizes of a part of the job."""
    sizes: dict[str, bool] = {}
    for source, its in facts.items():
        if size := its.stated.get("world size"):
            sizes[size] = sizes.get(size, True) and _highest(by_source.get(source, ())) < int(size)
    return {size for size, believed in sizes.items() if believed}


def _highest(rows: Rows) -> int:
    return max((row["rank"] for row in rows if row["rank"] is not None), default=-1)


def _of_other_jobs(spans: Sequence[LogSpan], by_source: Mapping[str, Rows]) -> dict[str, str]:
    """The sources that state another job than newer logs do, each with the reason in words."""
    found = {}
    stated: dict[str, str] = {}
    highest = -1
    for span in sorted(spans, key=_newest, reverse=True):
        own = _highest(by_source[span.source])
        if why := _difference(stated, highest, span.stated, own):
            found[span.source] = (
                f"it is from another job than the newest log ({why}), so it was not combined with that. To judge it, "
                "pass only the files of its job."
            )
        else:
            stated = {**span.stated, **stated}
            highest = max(highest, own)
    return found


def _newest(span: LogSpan) -> tuple[float, int, str]:
    number = span.job or ""
    return span.last_s or 0.0, int(number) if number.isdigit() else 0, span.source


def _difference(stated: Mapping[str, str], highest: int, others: Mapping[str, str], others_highest: int) -> str | None:
    """Why two jobs differ, from what logs state and the highest rank in them; None if nothing shows that they do."""
    kinds = [kind for kind in _KINDS if kind in stated and kind in others]
    if kinds[:1] == ["job"] and stated["job"] == others["job"]:
        return None
    for kind in kinds:
        if stated[kind] != others[kind]:
            return f"{kind} {others[kind]}, not {stated[kind]}"
    if "world size" in stated and others_highest >= int(stated["world size"]):
        return f"rank {others_highest}, in a world of {stated['world size']}"
    if "world size" in others and highest >= int(others["world size"]):
        return f"world size {others['world size']}, with a rank {highest}"
    return None


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
