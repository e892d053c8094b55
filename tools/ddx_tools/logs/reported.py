"""How findings out of reports of ranks are built: who reported, where in the program, and the lines that say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddx_tools.logs.event import Event
from ddx_tools.logs.identity import Enclosing
from ddx_tools.model import Finding, Location, Severity, rank_list

_EVIDENCE_LIMIT = 8
_VALUES_LIMIT = 64
_NO_RANK = "unknown"


def reported_finding(
    code: str,
    severity: Severity,
    events: list[Event],
    enclosing: Enclosing,
    attributes: dict[str, Any],
    group: str | None,
) -> Finding:
    """A finding out of what ranks reported; its summary is for the caller to say."""
    places = [place for event in events if (place := part_of(event, enclosing)[0])]
    attempts = sorted({event.attempt for event in events} - {0})
    facts = {**attributes, "basis": "log", "attempts": attempts or None}
    return Finding(
        code=code,
        severity=severity,
        ranks=sorted({rank for event in events for rank in event.ranks}),
        hosts=sorted({event.row["host"] for event in events if event.row["host"]}),
        group=group,
        summary="",
        evidence=[event.evidence for event in events[:_EVIDENCE_LIMIT]],
        locations=distinct_places(places),
        attributes={name: value for name, value in facts.items() if value is not None},
    )


def operation_of(event: Event, enclosing: Enclosing) -> str | None:
    """The function of torch.distributed in the traceback around a message."""
    return part_of(event, enclosing)[1]


def part_of(event: Event, enclosing: Enclosing) -> tuple[Location | None, str | None]:
    """Place and operation of the exception around a message."""
    around = enclosing.of(event)
    return around.part_at(event.row["source_line"]) if around else (None, None)


def distinct_places(places: list[Location]) -> list[Location]:
    """Each place once, and not too many."""
    return list({(place.file, place.line): place for place in places}.values())[:_EVIDENCE_LIMIT]


def by_ranks(values: Mapping[int, Any] | Mapping[int | None, Any]) -> dict[str, Any]:
    """Values by rank for a reader: `{"ranks 0-6": 412, "rank 7": 411}`; None is a rank that nothing names."""
    ranks: dict[Any, list[int]] = {}
    for rank, value in sorted(values.items(), key=lambda item: -1 if item[0] is None else item[0]):
        ranks.setdefault(value, []).extend([] if rank is None else [rank])
    named = {rank_list(mine) if mine else _NO_RANK: value for value, mine in ranks.items()}
    return dict(list(named.items())[:_VALUES_LIMIT])


def who_reports(ranks: list[int]) -> str:
    """The ranks that report, at the beginning of a sentence."""
    return rank_list(ranks).capitalize() if ranks else "A rank that the log does not name"
