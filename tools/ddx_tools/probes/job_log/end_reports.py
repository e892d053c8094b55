"""How ranks ended, with the events that report it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddx_tools.analysis.log_events.log_event import LogEvent
from ddx_tools.model.diagnosis import Evidence, Finding, Location, Severity, rank_list

EVIDENCE_LIMIT = 8


@dataclass
class EndReports:
    """The events that report the same kind of end of one or more ranks."""

    events: list[LogEvent] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    independent: bool | None = None
    """Whether nothing shows that it followed from another rank's end; None if unknown."""
    reason: str | None = None
    """What the end followed from."""

    def add(self, event: LogEvent, ranks: set[int]) -> None:
        """Add another event that reports this end, with its ranks."""
        self.events.append(event)
        self.ranks |= ranks

    @property
    def who(self) -> str:
        """The ranks, for the beginning of a sentence."""
        return rank_list(self.ranks).capitalize() if self.ranks else "An unidentified rank"

    @property
    def attempts(self) -> set[int]:
        """The restart attempts in which it happened."""
        return {event.attempt for event in self.events}

    @property
    def evidence(self) -> list[Evidence]:
        """The lines that report it."""
        return [event.evidence for event in self.events[:EVIDENCE_LIMIT]]

    @property
    def joined(self) -> str | None:
        """Return how the ranks were inferred from other log lines; None if a line states them itself."""
        return next((event.joined for event in self.events if event.joined), None)

    @property
    def hosts(self) -> list[str]:
        """The hosts that the events name."""
        named = {event.details.get("node") or event.row["host"] for event in self.events}
        return sorted(host for host in named if host)

    def places(self, *, origin: bool = False) -> list[Location]:
        """Return where in the program it happened; with `origin`, where the oldest exception of a chain was raised."""
        found: dict[tuple[str, int | None], Location] = {}
        for event in self.events:
            place = event.origin_location if origin else event.location
            if place:
                found.setdefault((place.file, place.line), place)
        return list(found.values())[:EVIDENCE_LIMIT]

    def codes(self, codes: dict[int, int]) -> dict[str, int] | None:
        """Return the known exit codes of these ranks, keyed by the rank as text; None if none is known.

        `codes` maps all ranks to their exit codes.
        """
        return {str(rank): codes[rank] for rank in sorted(self.ranks) if rank in codes} or None

    def finding(
        self,
        code: str,
        severity: Severity,
        did: str,
        more: Iterable[LogEvent] = (),
        places: Sequence[Location] = (),
        **facts: Any,
    ) -> Finding:
        """Build its finding: "<ranks> <did>", with the lines of `more` events. Facts that are None are left out."""
        told = {"reason": self.reason, "joined": self.joined, "basis": "log", **facts}
        attempts = sorted(self.attempts)
        if attempts != [0]:
            told["attempts"] = attempts
        events = [*self.events, *(event for event in more if event not in self.events)]
        return Finding(
            code=code,
            severity=severity,
            ranks=sorted(self.ranks),
            hosts=self.hosts,
            summary=f"{self.who} {did}"[:600],
            evidence=[event.evidence for event in events[:EVIDENCE_LIMIT]],
            locations=list(places),
            attributes={
                "independent": self.independent,
                **{name: value for name, value in told.items() if value is not None},
            },
        )
