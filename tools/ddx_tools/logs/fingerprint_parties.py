"""Mismatch reports of TORCH_DISTRIBUTED_DEBUG=DETAIL: the words of each rank about itself, laid side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from ddx_tools.analysis.collectives.party import Call, Job, Member, Party
from ddx_tools.analysis.collectives.raising import Aspect
from ddx_tools.logs.event import Event
from ddx_tools.logs.identity import Enclosing
from ddx_tools.logs.reported import distinct_places, part_of
from ddx_tools.model import Location
from ddx_tools.parsers.logs.fingerprint import Fingerprint, MismatchReport, parse_mismatch

_ASPECTS: tuple[Aspect, ...] = ("operation", "shape", "dtype")


def fingerprint_parties(events: list[Event], enclosing: Enclosing) -> list[Party]:
    """What the reports in these messages say, the same of all ranks together."""
    by_seq: dict[int | None, list[tuple[Event, MismatchReport]]] = defaultdict(list)
    for event in events:
        if report := parse_mismatch(event.row["text"]):
            by_seq[report.own.seq].append((event, report))
    return [_party(seq, reports, enclosing) for seq, reports in by_seq.items()]


def _party(seq: int | None, reports: list[tuple[Event, MismatchReport]], enclosing: Enclosing) -> Party:
    differing = [aspect for aspect in _ASPECTS if _differs(aspect, [report for _, report in reports])]
    members: dict[int, Member] = {}
    where: dict[int, Location] = {}
    for event, report in reports:
        if place := part_of(event, enclosing)[0]:
            where[report.own.rank] = place
        # A rank is right about itself, and not always about its peer.
        for said in (report.own, report.peer):
            if said and (said is report.own or said.rank not in members):
                member = members[said.rank] = Member(said.rank)
                member.call = Call(_values(said, differing), event.evidence, seq)
                member.hosts = {event.row["host"]} - {None}

    def places(ranks: Collection[int]) -> list[Location]:
        return distinct_places([where[rank] for rank in sorted(ranks) if rank in where])

    attempts = sorted({event.attempt for event, _ in reports} - {0})
    return Party("log", members, Job(frozenset()), named=True, one_point=True, attempts=attempts, places=places)


def _values(said: Fingerprint, differing: list[Aspect]) -> dict[Aspect, str]:
    values: dict[Aspect, str] = {aspect: str(getattr(said, aspect)) for aspect in differing}
    return {"operation": said.operation, **values}


def _differs(aspect: str, reports: list[MismatchReport]) -> bool:
    """Whether a report names it, or ranks that speak of themselves alone differ in it."""
    own = {getattr(report.own, aspect) for report in reports if report.peer is None}
    return len(own) > 1 or any(aspect in report.aspects for report in reports)
