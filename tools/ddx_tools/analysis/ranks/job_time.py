"""When a job ran, as far as its logs and records show it, and whether an event belongs to that time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from ddx_tools.analysis.ranks.first_calls import CLOCKS_APART_S, is_beyond_zones
from ddx_tools.evidence.store import Store

_EARLIEST_S = 1e9
"""Smaller numbers are no times of day."""
_LONG_S = 600.0
"""Steps this long after the end of a process show that the job does not need that process."""


@dataclass(frozen=True)
class JobTime:
    """The times of a job's first and last known event, in seconds since the epoch, on clocks of unknown zones."""

    first_s: float
    last_s: float
    year_known: bool = True
    """Whether anything states the year; if not, only month, day and time of day are right."""
    steps: tuple[tuple[float, float], ...] = ()
    """The times of the first and the last step of each series of such lines, unless a rank then waited in vain."""

    def holds(self, time_s: float | None, in_year_s: float | None = None) -> bool:
        """Whether an event may have happened while the job ran, in whatever time zone its clock is.

        `time_s`: its time in seconds since the epoch; `in_year_s`: the same as of an arbitrary year, if the year is
        unknown. True if both are None.
        """
        time_s = self._near(time_s, in_year_s)
        return time_s is None or self.first_s - CLOCKS_APART_S <= time_s <= self.last_s + CLOCKS_APART_S

    def outlived(self, time_s: float | None, in_year_s: float | None = None) -> bool:
        """Whether the job's steps went on long after an event, whatever the time zones of the clocks.

        The event's times are as in `holds`. False if it has none.
        """
        time_s = self._near(time_s, in_year_s)
        return time_s is not None and all_go_on(self.steps, time_s)

    def ended_before(self, time_s: float | None, in_year_s: float | None = None) -> bool:
        """Whether the job's last event was long before another event, whatever the clocks' time zones.

        The other event's times are as in `holds`. False if it has none.
        """
        time_s = self._near(time_s, in_year_s)
        return time_s is not None and is_long_after(time_s, self.last_s)

    def _near(self, time_s: float | None, in_year_s: float | None) -> float | None:
        """A time in the job's year if its own is unknown."""
        if time_s is not None and self.year_known:
            return time_s
        undated = in_year_s if time_s is None else time_s
        return None if undated is None else in_nearest_year(undated, self.last_s)


def is_long_after(later_s: float, ended_s: float) -> bool:
    """Whether something is long after an end, and not by the difference between time zones alone."""
    return later_s - ended_s > _LONG_S and is_beyond_zones(later_s - ended_s)


def in_nearest_year(time_s: float, about_s: float) -> float:
    """Move a time to the year that brings it nearest to `about_s`, keeping its date and time of day.

    For logs that do not state the year. Both times are seconds since the epoch, in UTC.
    """
    moment, about = (dt.datetime.fromtimestamp(one, dt.UTC) for one in (time_s, about_s))
    times = []
    for year in range(about.year - 1, about.year + 2):
        with suppress(ValueError):  # February 29
            times.append(moment.replace(year=year).timestamp())
    return min(times, key=lambda one: abs(one - about_s), default=time_s)


def all_go_on(steps: Iterable[tuple[float, float]], ended_s: float) -> bool:
    """Whether training steps went on long after an event, and no series of steps stopped with it.

    `steps`: the times of the first and the last step of each series; `ended_s`: that of the event. All are seconds
    since the epoch.
    """
    lasts = [last_s for _, last_s in steps]
    stopped = any(abs(last_s - ended_s) <= _LONG_S for last_s in lasts)
    return not stopped and any(is_long_after(last_s, ended_s) for last_s in lasts)


_SERIES = """
SELECT min(time_s) AS first_s, max(time_s) AS last_s FROM log_events WHERE kind = 'step' AND time_s IS NOT NULL
AND NOT coalesce(superseded, false) AND source NOT IN (SELECT source FROM logs WHERE left_out)
GROUP BY source, rank, details->>'shape'
"""
_WAITS = """
SELECT 1 FROM log_events WHERE kind IN ('watchdog', 'gloo') AND NOT coalesce(superseded, false)
AND source NOT IN (SELECT source FROM logs WHERE left_out) LIMIT 1
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
        series = () if store.query(_WAITS) else store.query(_SERIES)
        logged = replace(logged, steps=tuple((row["first_s"], row["last_s"]) for row in series))
    if called is None or logged is None:
        return called or logged
    first_s, last_s = (
        one if logged.year_known else in_nearest_year(one, called.last_s) for one in (logged.first_s, logged.last_s)
    )
    steps = logged.steps if logged.year_known else ()
    return JobTime(min(called.first_s, first_s), max(called.last_s, last_s), steps=steps)


def _between(store: Store, query: str) -> JobTime | None:
    row = store.query(query)[0]
    if row["first"] is None or row["first"] < _EARLIEST_S:
        return None
    return JobTime(row["first"], row["last"], row.get("year_known", True))
