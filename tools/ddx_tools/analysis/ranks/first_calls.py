"""When the ranks of a job began to work together, and what happened long before."""

from __future__ import annotations

from ddx_tools.evidence.store import Store

CLOCKS_APART_S = 15 * 3600.0
"""Time zones are at most 14 hours apart where nobody wrote which one it is."""


def first_call_s(store: Store) -> float | None:
    """The earliest call that flight records hold, in seconds since the epoch; None without records."""
    if not store.holds_any(("fr_entries",)):
        return None
    first: float | None = store.query("SELECT min(created_ns) / 1e9 AS first FROM fr_entries")[0]["first"]
    return first


def is_long_before(time_s: float | None, first_s: float | None) -> bool:
    """Whether something happened before the first call of a job that went on to make it, whatever the time zones."""
    return time_s is not None and first_s is not None and time_s < first_s - CLOCKS_APART_S
