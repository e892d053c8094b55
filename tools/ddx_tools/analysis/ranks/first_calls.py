"""When the ranks of a job made their first collective call, and whether an event happened long before it."""

from __future__ import annotations

from ddx_tools.evidence.store import Store

CLOCKS_APART_S = 15 * 3600.0
"""Unstated time zones differ by at most 14 hours; this leaves a margin."""
_ZONE_S = 1800.0
_ZONE_MARGIN_S = 120.0
"""Unstated zones differ by multiples of half an hour; the moments themselves are this close then."""


def is_beyond_zones(apart_s: float) -> bool:
    """Whether two times are apart by more than a time zone offset can explain.

    `apart_s` is their difference in seconds. True if it is over two minutes away from every multiple of half an hour.
    """
    return abs(apart_s - _ZONE_S * round(apart_s / _ZONE_S)) > _ZONE_MARGIN_S


def first_call_s(store: Store) -> float | None:
    """Time of the earliest call in the flight records, in seconds since the epoch; None without records."""
    if not store.holds_any(("fr_entries",)):
        return None
    first: float | None = store.query("SELECT min(created_ns) / 1e9 AS first FROM fr_entries")[0]["first"]
    return first


def is_long_before(time_s: float | None, first_s: float | None) -> bool:
    """Whether an event happened before a job's first call in any time zone, so that it did not stop the job."""
    return time_s is not None and first_s is not None and time_s < first_s - CLOCKS_APART_S
