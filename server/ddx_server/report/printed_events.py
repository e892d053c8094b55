"""Trouble that the job printed, in order: failures, exits, watchdogs; ranks that printed the same share one event."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddx_tools.evidence.store import Store
from ddx_tools.investigation.show.addresses import Names
from ddx_tools.model.diagnosis import rank_list
from ddx_tools.model.grouping import gathered

_MOST_EVENTS, _LONGEST = 16, 400
_VARYING = re.compile(r"0x[0-9a-f]+|\d+|\[\w+\]:")
"""The parts that may differ between lines that say the same."""


@dataclass(frozen=True)
class PrintedEvent:
    """One event that ranks printed."""

    at: str
    """Time of the first occurrence, UTC; "" if its line has none."""
    kind: str
    who: str
    says: str
    source: str
    """The words for `ddx show` that open it."""
    count: int
    blamed: bool
    """Whether only blamed ranks printed it."""


@dataclass(frozen=True)
class PrintedEvents:
    """The most informative events; times are from the hosts' clocks."""

    events: list[PrintedEvent]
    left_out: int


_EVENTS = """
SELECT host, rank, kind, code, text, details->>'quote' AS quote, time_s, exit_code, source, source_line FROM log_events
WHERE kind NOT IN ('step', 'value') AND NOT coalesce(superseded, false)
ORDER BY time_s NULLS LAST, source, source_line
"""
_TELLING = ("traceback", "fatal_stack", "exit", "error_file", "failure_summary", "watchdog", "gloo", "signature")
"""Kinds of events, the most important first."""


def printed_events(store: Store, names: Names, blamed: frozenset[int]) -> PrintedEvents | None:
    """Collect the failures, exits and watchdog messages that the job printed, in order of time.

    Lines that differ only in numbers form one event, and only the most informative events are kept. The result is None
    if the store has no such lines.
    """
    if not store.holds_any(["log_events"]):
        return None
    alike = gathered((_VARYING.sub("#", _said(row))[:120], row) for row in store.query(_EVENTS))
    if not alike:
        return None
    events = [_event(same, names, blamed) for same in alike.values()]
    ordered = sorted(events, key=lambda event: (not event.blamed, _weight(event.kind)))
    kept = {id(event) for event in ordered[:_MOST_EVENTS]}
    return PrintedEvents([event for event in events if id(event) in kept], max(0, len(events) - _MOST_EVENTS))


def _weight(kind: str) -> int:
    return _TELLING.index(kind) if kind in _TELLING else len(_TELLING)


def _said(row: dict[str, Any]) -> str:
    exit_code = f"exit code {row['exit_code']}" if row["exit_code"] is not None else ""
    return str(row["quote"] or row["text"] or row["code"] or exit_code or row["kind"])


def _event(same: Sequence[dict[str, Any]], names: Names, blamed: frozenset[int]) -> PrintedEvent:
    first = same[0]
    ranks = {row["rank"] for row in same if row["rank"] is not None}
    return PrintedEvent(
        at=clock(first["time_s"]),
        kind=min((row["kind"] for row in same), key=_weight),
        who=rank_list(ranks) if ranks else (first["host"] or "no rank named"),
        says=_said(first)[:_LONGEST],
        source=names.words(first["source"], first["source_line"]) if first["source"] else "",
        count=len(same),
        blamed=bool(ranks) and ranks <= blamed,
    )


def clock(time_s: float | None) -> str:
    """Format a time as `2026-11-22 02:47:03` (UTC); "" if it is not a time."""
    if time_s is None or not 0 < time_s < 1e11:
        return ""
    return dt.datetime.fromtimestamp(time_s, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
