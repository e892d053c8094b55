"""Marks failures that belong to another attempt than what a job waits for, and exceptions that their rank survived.

Within one log there is one clock: what is reported hours after a failure belongs to another attempt, and a rank that
speaks on after an exception has survived it. Between logs, clocks and time zones differ.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddx_tools.analysis.log_events.log_event import OWN_ENDS, REPORTED_ENDS
from ddx_tools.analysis.ranks.first_calls import CLOCKS_APART_S
from ddx_tools.analysis.ranks.job_time import all_go_on, in_nearest_year, is_long_after
from ddx_tools.model.grouping import gathered
from ddx_tools.parsers.logs.log_prefixes import seconds_without_year
from ddx_tools.probes.job_log.log_facts import LogFacts

Rows = Sequence[dict[str, Any]]

_ATTEMPTS_APART_S = 2 * 3600.0
_SPEAKS_ON_S = 600.0
"""What a process prints this long after an exception is no part of its end."""
_NEAR_S = 60.0
"""An exception without a date is as old as a line above it, if the last step in its log is this close to that."""
_STEPS_APART = 10
"""Ranks of a job that has a collective in each step are fewer steps apart."""
WAITS = ("watchdog", "gloo")
"""Kinds of rows in which a rank reports how long it waited."""
_FAILURES = frozenset({"traceback", *WAITS, "exit", "failure_summary", "fatal_stack", "signature"})
_ENDS = frozenset({"traceback", *REPORTED_ENDS, *OWN_ENDS})


@dataclass(frozen=True, order=True)
class _Moment:
    """A place in a log, and its time: with a year, or from a header whose year and zone are unknown."""

    line: int
    time_s: float
    has_year: bool = True

    def is_attempts_after(self, failure: _Moment) -> bool:
        """Whether this moment is hours after a failure in the same log, so that it belongs to a later attempt.

        Two hours are enough; 15 if only one of the two lines states the year, because time zones may differ.
        """
        apart_s = _ATTEMPTS_APART_S if self.has_year == failure.has_year else CLOCKS_APART_S
        return self.line > failure.line and self.time_s - failure.time_s > apart_s


def mark_before_reports(rows: Rows, about_s: float) -> None:
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
        if began is not None and row["kind"] in ("step", *WAITS):
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
    return _undated_moment(row, details, about_s)


def _undated_moment(row: Mapping[str, Any], details: Mapping[str, Any], about_s: float) -> _Moment | None:
    in_year_s = seconds_without_year(str(details.get("quote", ""))[:200])
    if in_year_s is None:
        return None
    return _Moment(row["source_line"], in_nearest_year(in_year_s, about_s), has_year=False)


def began_s(row: Mapping[str, Any], about_s: float) -> float | None:
    """Return when the wait that a row reports began, in seconds since the epoch.

    For a row that reports no wait: when its event happened. None if no time can be derived. `about_s`: a time near the
    job's, which supplies the year of dates that lack it.
    """
    details = json.loads(row["details"])
    time_s = row["time_s"] if row["time_s"] is not None else details.get("at_s")
    if time_s is None:
        moment = _undated_moment(row, details, about_s)
        time_s = moment.time_s if moment else None
    return None if time_s is None else float(time_s) - _waited_s(details)


def mark_before_waits(rows: Iterable[dict[str, Any]], about_s: float) -> None:
    """Mark ends of ranks that were long past when the first wait began that any log reports: they did not cause it.

    Only an end whose own line is dated: what stands above it may have been printed at the job's start.
    """
    rows = [row for row in rows if not row.get("superseded") and row["kind"] in (*WAITS, *_ENDS)]
    began = [at_s for row in rows if row["kind"] in WAITS and (at_s := began_s(row, about_s)) is not None]
    if not began:
        return
    for row in rows:
        ended_s = began_s(row, about_s) if row["kind"] in _ENDS else None
        if ended_s is not None and ended_s < min(began) - CLOCKS_APART_S:
            row["superseded"] = True


@dataclass(frozen=True)
class _Series:
    """Lines about steps, of one form and one rank in one log: their times, and the last number."""

    source: str
    rank: int | None
    shape: str
    first_s: float
    last_s: float
    number: int


def mark_before_steps(rows: Rows, about_s: float) -> None:
    """Mark ends of ranks after which the job went on for minutes: they belong to an earlier attempt or another job.

    Either ranks that print the same lines as it went far beyond its last step; or all steps went on, and no rank then
    waited in vain: an asynchronous job may miss a rank only later.
    """
    current = [row for row in rows if not row.get("superseded")]
    series = _all_series(current)
    began = [at_s for row in current if row["kind"] in WAITS and (at_s := began_s(row, about_s)) is not None]
    undated = any(row["kind"] in WAITS for row in current) and not began
    latest_s = max((one.last_s for one in series), default=0.0)
    for row in current if series else ():
        ended_s = _ended_s(row, series, about_s) if row["kind"] in _ENDS else None
        if ended_s is None or latest_s - ended_s <= _SPEAKS_ON_S:
            continue
        go_on = all_go_on([(one.first_s, one.last_s) for one in series], ended_s)
        misses_it = undated or any(0 <= at_s - ended_s < _ATTEMPTS_APART_S for at_s in began)
        if (go_on and not misses_it) or _is_left_behind(row, series, ended_s):
            row["superseded"] = True


def _all_series(rows: Rows) -> list[_Series]:
    steps = [row for row in rows if row["kind"] == "step" and row["time_s"] is not None]
    found = []
    for (source, rank, shape), its in gathered(
        ((row["source"], row["rank"], details.get("shape", "")), (row["time_s"], details.get("step") or 0))
        for row, details in ((row, json.loads(row["details"])) for row in steps)
    ).items():
        times = [time_s for time_s, _ in its]
        found.append(_Series(source, rank, shape, min(times), max(times), max(number for _, number in its)))
    return found


def _is_left_behind(row: Mapping[str, Any], series: Sequence[_Series], ended_s: float) -> bool:
    """Whether ranks that print the same lines went far beyond its last step: all others, or some only later on."""
    own = [one for one in series if one.source == row["source"] and one.rank == row["rank"]]
    shapes, number = {one.shape for one in own}, max((one.number for one in own), default=0)
    others = [one for one in series if one not in own and one.shape in shapes]
    later = [one for one in others if one.last_s - ended_s > _SPEAKS_ON_S]
    beyond = [one for one in later if one.number - number > _STEPS_APART]
    return bool(beyond) and (len(later) == len(others) or any(one.first_s > ended_s for one in beyond))


def _ended_s(row: Mapping[str, Any], series: Sequence[_Series], about_s: float) -> float | None:
    """When a rank ended: by its own line, or by a line just above it that is close to a step. Others may be older."""
    details = json.loads(row["details"])
    time_s = row["time_s"] if row["time_s"] is not None else details.get("at_s")
    if time_s is not None:
        return float(time_s)
    above_s = details.get("after_s")
    own = (one.last_s for one in series if one.source == row["source"])
    if above_s is not None and any(abs(float(above_s) - last_s) <= _NEAR_S for last_s in own):
        return float(above_s)
    moment = _undated_moment(row, details, about_s)
    return None if moment is None else moment.time_s


def _waited_s(details: Mapping[str, Any]) -> float:
    """How long a wait lasted that a watchdog reports."""
    told = details.get("elapsed_ms") or details.get("timeout_ms") or 0
    return float(told) / 1000 if str(told).isdigit() else 0.0


def mark_outlived(
    rows: Rows,
    facts: LogFacts,
    elsewhere_s: Callable[[int | None], float | None],
    about_s: float,
    *,
    on_one_host: bool,
) -> None:
    """Mark what their rank outlived: exceptions after which its program speaks on, and ends before it speaks elsewhere.

    `elsewhere_s`: returns the time of a rank's last words in other logs. An exception in a log that reports ends of
    ranks is not marked. On the only host of a job, the local ranks that a launcher reports are ranks.
    """
    for row in rows:
        rank = _ended_rank(row, on_one_host) if row["kind"] in REPORTED_ENDS else None
        later_s = elsewhere_s(rank)
        ended_s = None if later_s is None else began_s(row, about_s)
        if later_s is not None and ended_s is not None and is_long_after(later_s, ended_s):
            row["superseded"] = True
    if any(row["kind"] in (*REPORTED_ENDS, *OWN_ENDS) for row in rows):
        return
    own = {row["rank"] for row in rows} - {None}
    for row in rows:
        if row["kind"] != "traceback" or row["rank"] is None:
            continue
        details = json.loads(row["details"])
        spoke_s = facts.spoke_s.get(row["rank"], facts.spoke_s.get(None) if own == {row["rank"]} else None)
        later_s = elsewhere_s(row["rank"])
        raised_s = row["time_s"] if row["time_s"] is not None else details.get("after_s")
        if raised_s is None:
            continue
        speaks_on = spoke_s is not None and spoke_s - raised_s > _SPEAKS_ON_S
        if speaks_on or (later_s is not None and is_long_after(later_s, raised_s)):
            row["details"] = json.dumps({**details, "outlived": True}, ensure_ascii=False)


def _ended_rank(row: Mapping[str, Any], on_one_host: bool) -> int | None:
    rank: int | None = row["rank"]
    if rank is None and on_one_host:
        rank = json.loads(row["details"]).get("local_rank")
    return rank
