"""The timeline of a job, as far as its rows have times, and how long the job made no progress."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import rank_list
from ddx_tools.model.grouping import gathered

_MOST_MOMENTS, _LONGEST = 20, 240
_TROUBLE = ("traceback", "fatal_stack", "exit", "watchdog", "gloo", "failure_summary", "error_file")
_LONGEST_SILENCE_S = 90 * 86_400.0
"""A longer silence means that a clock is wrong."""


@dataclass(frozen=True)
class Moment:
    """One event with its time."""

    time_s: float
    """Wall clock of the event's host, in seconds since the epoch."""
    says: str
    quote: str = ""


@dataclass(frozen=True)
class JobMoments:
    """The timeline of a job."""

    moments: list[Moment]
    silent_since: Moment | None
    """When a rank failed, or began to wait and never stopped."""
    last: Moment | None
    """The last sign of the job, or the last time it was captured."""

    @property
    def silence_s(self) -> float | None:
        """The least time for which the job made no progress, in seconds; None if unknown."""
        if self.silent_since is None or self.last is None:
            return None
        silence_s = self.last.time_s - self.silent_since.time_s
        return silence_s if 0 < silence_s < _LONGEST_SILENCE_S else None


def job_moments(store: Store, victims: Collection[int], blamed: Collection[int]) -> JobMoments:
    """The timeline from the rows of a store. `victims` are the waiting ranks, `blamed` the ranks they wait for."""
    starts = [*_waits(store, set(victims)), *_failures(store, set(blamed))]
    since = min(starts, key=lambda moment: moment.time_s, default=None)
    moments = [*_progress(store), *starts, *_printed(store), *_captures(store)]
    ordered = sorted({moment.says: moment for moment in moments}.values(), key=lambda moment: moment.time_s)
    return JobMoments(ordered[:_MOST_MOMENTS], since, ordered[-1] if ordered else None)


def clock(time_s: float) -> str:
    """Format a time as `2026-11-22 02:47:03`, UTC."""
    return dt.datetime.fromtimestamp(time_s, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


_DONE = """
SELECT max(completed_ns) / 1e9 AS time_s, arg_max(e.seq, completed_ns) AS seq, arg_max(c.op, completed_ns) AS op
FROM fr_entries e JOIN fr_calls c USING (call) WHERE e.completed_ns > 0
"""
_STEP = """
SELECT time_s, details->>'step' AS step FROM log_events WHERE kind = 'step' AND time_s IS NOT NULL
ORDER BY time_s DESC LIMIT 1
"""


def _progress(store: Store) -> Iterator[Moment]:
    """Yield the last work that is known to have been done."""
    for row in store.query(_DONE):
        if _is_time(row["time_s"]):
            number = f" {row['seq']}" if row["seq"] is not None else ""
            yield Moment(row["time_s"], f"the last collective that a rank completed: {row['op']}{number}")
    for row in store.query(_STEP):
        if _is_time(row["time_s"]):
            yield Moment(row["time_s"], f"the last printed step: {row['step']}")


_OPEN = """
SELECT min(e.created_ns) / 1e9 AS time_s, d.rank, arg_min(e.seq, e.created_ns) AS seq, arg_min(c.op, e.created_ns) AS op
FROM fr_entries e JOIN fr_memberships m USING (membership) JOIN fr_dumps d USING (dump) JOIN fr_calls c USING (call)
WHERE NOT e.done AND e.created_ns > 0 AND d.rank IS NOT NULL GROUP BY d.rank
"""
_BLOCKED = """
SELECT min(taken_s - blocked_s) AS time_s, rank FROM stack_threads
WHERE is_main AND role = 'rank' AND rank IS NOT NULL AND blocked_s > 1 AND taken_s IS NOT NULL GROUP BY rank
"""
_EXPIRED = """
SELECT min(time_s - CAST(details->>'elapsed_ms' AS DOUBLE) / 1e3) AS time_s, rank FROM log_events
WHERE kind = 'watchdog' AND time_s IS NOT NULL AND rank IS NOT NULL AND details->>'elapsed_ms' IS NOT NULL GROUP BY rank
"""


def _waits(store: Store, victims: set[int]) -> Iterator[Moment]:
    """Yield when the first of the waiting ranks began to wait, according to each source."""
    for query, words in (
        (_OPEN, "rank {rank} called {op} {seq}, which never completed"),
        (_BLOCKED, "rank {rank} last made progress, according to its kernel"),
        (_EXPIRED, "rank {rank} began to wait, according to its watchdog"),
    ):
        rows = [row for row in store.query(query) if row["rank"] in victims and _is_time(row["time_s"])]
        if rows:
            first = min(rows, key=lambda row: (row["time_s"], row["rank"]))
            yield Moment(first["time_s"], words.format(**first))


_EVENTS = """
SELECT rank, host, kind, code, text, details->>'quote' AS quote, exit_code, time_s FROM log_events
WHERE time_s IS NOT NULL AND kind IN ? AND NOT coalesce(superseded, false) ORDER BY time_s
"""


def _failures(store: Store, blamed: set[int]) -> Iterator[Moment]:
    """Yield the first failure of a blamed rank."""
    rows = store.query(_EVENTS, [["traceback", "fatal_stack", "exit"]])
    for row in [row for row in rows if row["rank"] in blamed and _is_time(row["time_s"])][:1]:
        yield Moment(row["time_s"], f"rank {row['rank']}: {row['code'] or _words(row['kind'])}", _said(row))


def _printed(store: Store) -> Iterator[Moment]:
    """Yield the failures of all ranks, each kind once."""
    rows = [row for row in store.query(_EVENTS, [list(_TROUBLE)]) if _is_time(row["time_s"])]
    for (kind, code), same in gathered(((row["kind"], row["code"]), row) for row in rows).items():
        ranks = {row["rank"] for row in same if row["rank"] is not None}
        who = rank_list(ranks) if ranks else same[0]["host"] or "the job"
        yield Moment(same[0]["time_s"], f"{who}: {code or _words(kind)}", _said(same[0]))


_CAPTURES = """
SELECT max(taken_s) AS time_s, 'stacks were read' AS says FROM stack_threads UNION ALL
SELECT max(coalesce(taken_ns, latest_ns)) / 1e9, 'the last flight record was written' FROM fr_dumps
"""


def _captures(store: Store) -> Iterator[Moment]:
    for row in store.query(_CAPTURES):
        if _is_time(row["time_s"]):
            yield Moment(row["time_s"], row["says"])


def _is_time(time_s: Any) -> bool:
    return isinstance(time_s, float | int) and 1e8 < time_s < 1e11


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _said(row: dict[str, Any]) -> str:
    return str(row["quote"] or row["text"] or json.dumps(row["exit_code"]))[:_LONGEST]
