"""When a job stopped making progress, as well as its records, stacks and logs show it."""

from __future__ import annotations

from dataclasses import dataclass

from ddx_tools.evidence.store import Store

_LONGEST_S = 3600.0
"""The longest time between the first and the last sign: ranks that end one after another stop within less."""
_WRITTEN_WITHIN_S = 10.0
"""A log's last event and the last change of its file are at most so far apart, if both are of the same moment."""
_ZONES_S = 1800.0
_MOST_ZONES_S = 14 * 3600.0
_LATEST_S = 1e10
_LEAST_BLOCKED_S = 10.0


@dataclass(frozen=True)
class StoppedAt:
    """The time at which a job stopped, in seconds since the epoch: when the first and when the last rank did."""

    first_s: float
    last_s: float
    basis: str
    """The evidence, in words."""
    zone_known: bool = True
    """Whether the clock of the evidence is known to be UTC; logs rarely name their time zone."""


def silence_of(store: Store) -> StoppedAt | None:
    """Return when the job stopped, according to the best source; None if nothing shows it.

    The order of sources is flight records, stacks, watchdog messages, printed steps, failures. Waits come before steps,
    since the steps ended before the waits began.
    """
    for known in (_of_records, _of_stacks, _of_watchdogs, _of_steps, _of_failures):
        if (found := known(store)) and 0 < found.last_s < _LATEST_S:
            first_s = max(found.first_s, found.last_s - _LONGEST_S)
            return StoppedAt(first_s, found.last_s, found.basis, found.zone_known)
    return None


def _of_records(store: Store) -> StoppedAt | None:
    return _between(
        store,
        "SELECT min(last) AS first, max(last) AS last FROM "
        "(SELECT max(last_call_ns) / 1e9 AS last FROM fr_dumps WHERE last_call_ns IS NOT NULL GROUP BY rank)",
        "the last calls in the flight records",
    )


def _of_stacks(store: Store) -> StoppedAt | None:
    return _between(
        store,
        "SELECT min(taken_s - blocked_s) AS first, max(taken_s - blocked_s) AS last FROM stack_threads "
        f"WHERE role = 'rank' AND is_main AND operation IS NOT NULL AND blocked_s > {_LEAST_BLOCKED_S}",
        "the stacks: ranks have been blocked since then",
    )


def _between(store: Store, query: str, basis: str) -> StoppedAt | None:
    row = store.query(query)[0]
    return None if row["first"] is None else StoppedAt(row["first"], row["last"], basis)


def _of_watchdogs(store: Store) -> StoppedAt | None:
    return _of_log(
        store,
        "SELECT source, min(time_s - TRY_CAST(details->>'elapsed_ms' AS BIGINT) / 1e3) AS first, "
        "max(time_s - TRY_CAST(details->>'elapsed_ms' AS BIGINT) / 1e3) AS last FROM log_events "
        "WHERE kind = 'watchdog' AND NOT coalesce(superseded, false) AND details->>'elapsed_ms' IS NOT NULL "
        "AND time_s IS NOT NULL GROUP BY source ORDER BY first LIMIT 1",
        "the wait that the watchdog reports",
    )


def _of_steps(store: Store) -> StoppedAt | None:
    """The last printed step; the job stopped before it would have printed the next one."""
    return _of_log(
        store,
        "SELECT source, max(time_s) AS first, 2 * max(time_s) - coalesce(max(time_s) FILTER (time_s < latest), "
        "max(time_s)) AS last FROM (SELECT source, time_s, max(time_s) OVER (PARTITION BY source) AS latest "
        "FROM log_events WHERE kind = 'step' AND time_s IS NOT NULL AND NOT coalesce(superseded, false)) "
        "GROUP BY source ORDER BY first DESC LIMIT 1",
        "the last step in the logs",
    )


def _of_failures(store: Store) -> StoppedAt | None:
    return _of_log(
        store,
        "SELECT source, min(time_s) AS first, min(time_s) AS last FROM log_events WHERE time_s IS NOT NULL "
        "AND NOT coalesce(superseded, false) AND kind IN ('traceback', 'watchdog', 'gloo', 'exit', 'failure_summary', "
        "'fatal_stack', 'signature') GROUP BY source ORDER BY first LIMIT 1",
        "the first failure in the logs",
    )


def _of_log(store: Store, query: str, basis: str) -> StoppedAt | None:
    rows = store.query(query)
    if not rows:
        return None
    row = rows[0]
    ahead_s = _ahead_of_utc_s(store, row["source"])
    first_s, last_s = (row[name] - (ahead_s or 0.0) for name in ("first", "last"))
    return StoppedAt(first_s, last_s, basis, zone_known=ahead_s is not None)


def _ahead_of_utc_s(store: Store, source: str) -> float | None:
    """How far a log's clock is ahead of UTC, if its last event and the last change of its file are of one moment."""
    rows = store.query(
        "SELECT max(e.time_s) AS last_event, max(m.written_ns) / 1e9 AS written FROM log_events e JOIN materials m "
        "ON m.source = e.source WHERE e.source = ?",
        [source],
    )
    last_event, written = rows[0]["last_event"], rows[0]["written"]
    if last_event is None or written is None:
        return None
    zone_s = round((last_event - written) / _ZONES_S) * _ZONES_S
    near = abs(last_event - written - zone_s) <= _WRITTEN_WITHIN_S and abs(zone_s) <= _MOST_ZONES_S
    return zone_s if near else None
