"""When a job ran, as far as its logs and records show it, and whether an event belongs to that time."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from dataclasses import dataclass, replace

from ddx_tools.analysis.ranks.first_calls import CLOCKS_APART_S, is_beyond_zones
from ddx_tools.evidence.store import Store

_EARLIEST_S = 1e9
"""Smaller numbers are no times of day."""
_LONG_S = 600.0
"""Steps this long after something has ended a process show that the job does not need that process."""


@dataclass(frozen=True)
class JobTime:
    """The times of a job's first and last known event, in seconds since the epoch, on clocks of unknown zones."""

    first_s: float
    last_s: float
    year_known: bool = True
    """Whether anything states the year; if not, only month, day and time of day are right."""
    stepped_s: float | None = None
    """The time of its last step that a log prints."""

    def holds(self, time_s: float | None, in_year_s: float | None = None) -> bool:
        """Whether something may have happened from the job's first event to shortly after its last, in some time zone.

        `in_year_s`: its time as of an arbitrary year, if the year is unknown. What has no time may have.
        """
        time_s = self._near(time_s, in_year_s)
        return time_s is None or self.first_s - CLOCKS_APART_S <= time_s <= self.last_s + CLOCKS_APART_S

    def outlived(self, time_s: float | None, in_year_s: float | None = None) -> bool:
        """Whether the job made steps long after something happened, in whatever time zones the clocks are."""
        time_s = self._near(time_s, in_year_s)
        return time_s is not None and self.stepped_s is not None and is_long_after(self.stepped_s, time_s)

    def ended_before(self, time_s: float | None, in_year_s: float | None = None) -> bool:
        """Whether its last event was long before something happened, in whatever time zones the clocks are."""
        time_s = self._near(time_s, in_year_s)
        return time_s is not None and is_long_after(time_s, self.last_s)

    def _near(self, time_s: float | None, in_year_s: float | None) -> float | None:
        """A time in the job's year if its own is unknown."""
        if time_s is not None and self.year_known:
            return time_s
        undated = in_year_s if time_s is None else time_s
        return None if undated is None else in_nearest_year(undated, self.last_s)


def is_long_after(later_s: float, ended_s: float, *, zones_known: bool = False) -> bool:
    """Whether something is long after an end, and not by the difference between time zones alone."""
    return later_s - ended_s > _LONG_S and (zones_known or is_beyond_zones(later_s - ended_s))


def in_nearest_year(time_s: float, about_s: float) -> float:
    """The same day and time of day, in the year that brings it nearest to another time."""
    moment, about = (dt.datetime.fromtimestamp(one, dt.UTC) for one in (time_s, about_s))
    times = []
    for year in range(about.year - 1, about.year + 2):
        with suppress(ValueError):  # February 29
            times.append(moment.replace(year=year).timestamp())
    return min(times, key=lambda one: abs(one - about_s), default=time_s)


_LAST_STEP = """
SELECT max(time_s) AS last FROM log_events WHERE kind = 'step' AND NOT coalesce(superseded, false)
AND source NOT IN (SELECT source FROM logs WHERE left_out)
"""


def job_time(store: Store) -> JobTime | None:
    """When the job ran, by its flight records and by the logs that are of it; None if neither is dated."""
    called = _between(store, "SELECT min(created_ns) / 1e9 AS first, max(created_ns) / 1e9 AS last FROM fr_entries")
    logged = _between(
        store,
        "SELECT min(first_s) AS first, max(last_s) AS last, bool_and(year_known) AS year_known FROM logs "
        "WHERE NOT coalesce(left_out, false)",
    )
    if logged is not None:
        stepped_s = store.query(_LAST_STEP)[0]["last"]
        logged = replace(logged, stepped_s=stepped_s if stepped_s is None or stepped_s >= _EARLIEST_S else None)
    if called is None or logged is None:
        return called or logged
    first_s, last_s = (
        one if logged.year_known else in_nearest_year(one, called.last_s) for one in (logged.first_s, logged.last_s)
    )
    stepped_s = logged.stepped_s if logged.year_known else None
    return JobTime(min(called.first_s, first_s), max(called.last_s, last_s), stepped_s=stepped_s)


def _between(store: Store, query: str) -> JobTime | None:
    row = store.query(query)[0]
    if row["first"] is None or row["first"] < _EARLIEST_S:
        return None
    return JobTime(row["first"], row["last"], row.get("year_known", True))
