"""What logs say of an attempt that a script or the scheduler replaced by another: kept apart from the rest."""

from __future__ import annotations

from collections.abc import Iterator

from ddx_tools.logs.event import OWN_ENDS, REPORTED_ENDS, Event
from ddx_tools.model import Finding, Severity, rank_list

_EVIDENCE_LIMIT = 8
_FAILURES = ("traceback", "watchdog", "gloo", *REPORTED_ENDS, *OWN_ENDS)


def parted(events: list[Event]) -> tuple[list[Event], list[Event]]:
    """(events of earlier attempts, all others). While the new attempt says nothing of itself, the old one counts."""
    earlier = [event for event in events if event.row["superseded"]]
    others = [event for event in events if not event.row["superseded"]]
    if not any(event.kind == "step" or event.kind in _FAILURES for event in others):
        return [], events
    return earlier, others


def earlier_attempt(earlier: list[Event], events: list[Event]) -> Iterator[Finding]:
    """What failed before the job was started again, and whether it has made steps since."""
    failed = [event for event in earlier if event.kind in _FAILURES]
    if not failed:
        return
    since = sorted({rank for event in events if event.kind == "step" for rank in event.ranks})
    troubled = any(event.kind in _FAILURES for event in events)
    words = f" Since then {rank_list(since)} printed steps." if since else ""
    yield Finding(
        code="job.earlier_attempt",
        severity=Severity.NOTICE,
        ranks=sorted({rank for event in failed for rank in event.ranks}),
        summary=f"The job was started again after errors that the log still shows.{words}",
        evidence=[event.evidence for event in failed[:_EVIDENCE_LIMIT]],
        attributes={
            "steps_since": 0 if troubled else len(since),
            "failures": sorted({event.kind for event in failed}),
            "basis": "log",
        },
    )
