"""When a job ran, as far as its logs and records show it, and whether an event belongs to that time."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from dataclasses import dataclass

from ddx_tools.analysis.ranks.first_calls import CLOCKS_APART_S
from ddx_tools.evidence.store import Store

_EARLIEST_S = 1e9
"""Smaller numbers are no times of day."""


@dataclass(frozen=True)
class JobTime:
    """The times of a job's first and last known event, in seconds since the epoch, on clocks of unknown zones."""

    first_s: float
    last_s: float
    year_known: bool = True
    """Whether anything states the year; if not, only month, day and time of day are right."""

    def holds(self, time_s: float | None, in_year_s: float | None = None) -> bool:
        """Whether something may have happened from the job's first event to shortly after its last, in some time zone.

        `in_year_s`: its time as of an arbitrary year, if the year is unknown. What has no time may have.
        """
        if time_s is None or not self.year_known:
            undated = in_year_s if time_s is None else time_s
            time_s = None if undated is None else in_nearest_year(undated, self.last_s)
        return time_s is None or self.first_s - CLOCKS_APART_S <= time_s <= self.last_s + CLOCKS_APART_S


def in_nearest_year(time_s: float, about_s: float) -> float:
    """The same day and time of day, in the year that brings it nearest to another time."""
    moment, about = (dt.datetime.fromtimestamp(one, dt.UTC) for one in (time_s, about_s))
    times = []
    for year in range(about.year - 1, about.year + 2):
        with suppress(ValueError):  # February 29
            times.append(moment.replace(year=year).timestamp())
    return min(times, key=lambda one: abs(one - about_s), default=time_s)


def job_time(store: Store) -> JobTime | None:
    """When the job ran, by its flight records and by the logs that are of it; None if neither is dated."""
    called = _between(store, "SELECT min(created_ns) / 1e9 AS first, max(created_ns) / 1e9 AS last FROM fr_entries")
    logged = _between(
        store,
        "SELECT min(first_s) AS first, max(last_s) AS last, bool_and(year_known) AS year_known FROM logs "
        "WHERE NOT coalesce(left_out, false)",
    )
    if called is None or logged is None:
        return called or logged
    first_s, last_s = (
        one if logged.year_known else in_nearest_year(one, called.last_s) for one in (logged.first_s, logged.last_s)
    )
    return JobTime(min(called.first_s, first_s), max(called.last_s, last_s))


def _between(store: Store, query: str) -> JobTime | None:
    row = store.query(query)[0]
    if row["first"] is None or row["first"] < _EARLIEST_S:
        return None
    return JobTime(row["first"], row["last"], row.get("year_known", True))
