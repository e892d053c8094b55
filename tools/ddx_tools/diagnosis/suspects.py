"""The ranks that hold the job up according to the findings of all sources, each with its event.

It asks nothing about causes: no page of a playbook is read, and an answer that names no cause still names them. Which
finding mentions whom stands in `knowledge/suspects.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import cache

from pydantic import Field

from ddx_tools.diagnosis.matching import meets
from ddx_tools.diagnosis.playbook import Condition
from ddx_tools.knowledge.load import shipped
from ddx_tools.model.basis import HANDED_IN
from ddx_tools.model.diagnosis import (
    Certainty,
    Claim,
    Diagnosis,
    Event,
    Finding,
    Seat,
    Suspect,
    SuspectEvent,
    Verdict,
    distinct,
    rank_list,
)
from ddx_tools.model.grouping import gathered

_MOST_CLAIMS, _MOST_PLACES, _MOST_SEATS, _MOST_OTHERS = 4, 6, 32, 3
_MOST_SENTENCES = 8


class SuspectRule(Condition):
    """How a finding makes its ranks suspects."""

    event: SuspectEvent
    certainty: Certainty = Certainty.SEEN
    unless: str = Field("", description="What would clear them.")
    ranks_in: str = Field("", description="The attribute that holds the suspects (by rank); else the finding's ranks.")
    moving: bool = Field(False, description="It is a fault even while the job is running.")


@cache
def _steps() -> tuple[tuple[SuspectRule, ...], ...]:
    return tuple(tuple(SuspectRule.model_validate(each) for each in step["step"]) for step in shipped("suspects.yaml"))


def find_suspects(findings: Sequence[Finding], seats: Mapping[int, Seat] | None = None) -> list[Suspect]:
    """Return the ranks or hosts that findings make suspects, by the first matching step of rules.

    Submitted findings count only if the others name no suspect. `seats`: where each rank runs.
    """
    seen = [finding for finding in findings if finding.attributes.get("basis") != HANDED_IN]
    if len(seen) < len(findings):
        if suspects := find_suspects(seen, seats):
            return suspects
        # Nothing that was seen names a suspect.
        likely = {"certainty": Certainty.LIKELY, "unless": "whoever submitted it misread the evidence"}
        told_of = [one.model_copy(update={"attributes": one.attributes | {"basis": "told"}}) for one in findings]
        return [suspect.model_copy(update=likely) for suspect in find_suspects(told_of, seats)]
    moving = any(finding.code == "job.progressing" for finding in findings)
    told = [
        (number, reading, _about(finding, reading))
        for number, step in enumerate(_steps())
        for reading in step
        for finding in findings
        if (reading.moving or not moving) and meets(finding, reading)
    ]
    if not told:
        return []
    first = told[0][0]
    chosen = gathered(
        ((reading.event, reading.certainty), (reading, finding)) for number, reading, finding in told if number == first
    )
    suspects = [_suspect(together, seats or {}) for together in chosen.values()]
    for number, _, finding in told:
        if number > first:
            _hold_against(suspects, finding)
    return suspects


def _about(finding: Finding, reading: SuspectRule) -> Finding:
    """A finding with the suspects as its ranks; places are those of the ranks that report them."""
    if not reading.ranks_in:
        return finding
    ranks = sorted(set(finding.attributes[reading.ranks_in].values()))
    return finding.model_copy(update={"ranks": ranks, "hosts": [], "locations": []})


def blames(finding: Finding) -> bool:
    """Whether a finding makes its ranks suspects for another reason than that they ended."""
    return any(
        reading.event is not SuspectEvent.ENDED and meets(finding, reading) for step in _steps() for reading in step
    )


def with_suspects(
    said: Diagnosis,
    findings: Sequence[Finding],
    seats: Mapping[int, Seat],
    roots: Sequence[Suspect] = (),
    everybody: int = 0,
    circle: Set[int] = frozenset(),
) -> Diagnosis:
    """The answer with its suspects; if it is undecided, the headline names them. Its chain is shortened.

    `roots`: the suspects that the wait graph names; where it names nobody, the findings do. `everybody`: how many ranks
    the job has at least. `circle`: ranks that wait for each other according to the graph.
    """
    if len(said.chain) > _MOST_SENTENCES:
        rest = len(said.chain) - _MOST_SENTENCES + 1
        said = said.model_copy(update={"chain": [*said.chain[: _MOST_SENTENCES - 1], f"And {rest} more waits."]})
    suspects = list(roots) or _without_majority(_without_guesses(find_suspects(findings, seats), circle), everybody)
    if not suspects:
        return said
    more: dict[str, object] = {
        "suspects": suspects,
        "event": Event(what=suspects[0].event, summary=suspects[0].says),
    }
    if said.verdict is Verdict.UNDECIDED:
        ranks = {rank for suspect in suspects for rank in suspect.ranks}
        kept = [rank for rank in said.victims.ranks if rank not in ranks]
        more["victims"] = said.victims.model_copy(update={"ranks": kept})
        if ranks:
            possible = f"; one possibility: {said.causes[0].title}" if said.causes else ""
            who = suspects[0].says if roots else _sentence(suspects[0])
            more["headline"] = f"{who}; cause undecided{possible}"
    return said.model_copy(update=more)


_UNLESS_LOST = "its record was lost: files of the bundle are missing or damaged"


def doubting_silence(answer: Diagnosis) -> Diagnosis:
    """Return the answer with less certainty about suspects that left no report.

    For bundles with gaps: their report may have been in the missing files.
    """
    suspects = [
        one.model_copy(update={"certainty": Certainty.LIKELY, "unless": one.unless or _UNLESS_LOST})
        if one.event is SuspectEvent.SILENT
        else one
        for one in answer.suspects
    ]
    return answer.model_copy(update={"suspects": suspects})


def _without_guesses(suspects: list[Suspect], circle: Set[int]) -> list[Suspect]:
    """Suspects without those that may be absent, and are only some of the ranks that wait for each other."""
    guess = (Certainty.LIKELY, SuspectEvent.ABSENT)
    return [one for one in suspects if (one.certainty, one.event) != guess or not set(one.ranks) < circle]


def _without_majority(suspects: list[Suspect], everybody: int) -> list[Suspect]:
    """Suspects without those that are most of a job's ranks, unless they ended: the few hold up the many."""
    named = {rank for suspect in suspects if suspect.event is not SuspectEvent.ENDED for rank in suspect.ranks}
    if everybody <= 2 or 2 * len(named) <= everybody:
        return suspects
    return [suspect for suspect in suspects if suspect.event is SuspectEvent.ENDED]


def seated(suspect: Suspect, *, one_host: bool = False) -> str:
    """Ranks with their seats: `rank 77 (node-9, local rank 5)`, `ranks 0-448 step 64 (node-3)`.

    `one_host`: the whole job runs on one, so that seats say nothing.
    """
    if not suspect.ranks:
        hosts = f"host{'' if len(suspect.hosts) == 1 else 's'} {', '.join(suspect.hosts)}"
        return hosts if suspect.hosts else "an unidentified rank"
    who = rank_list(suspect.ranks)
    seats = [f"local rank {seat.local_rank}" for seat in suspect.seats if seat.local_rank is not None]
    if one_host:
        return who
    parts = [rank for rank in suspect.hosts if len(suspect.hosts) == 1] + (seats if len(suspect.ranks) == 1 else [])
    return f"{who} ({', '.join(parts)})" if parts else who


WORDS = {
    SuspectEvent.ENDED: "ended",
    SuspectEvent.ABSENT: "never entered the collective that the others wait in",
    SuspectEvent.OUTSIDE: "has not entered the collective that its peers wait in",
    SuspectEvent.MISMATCHED: "differs from its peers",
    SuspectEvent.LATE: "enters collectives late",
    SuspectEvent.SILENT: "left no report, unlike its peers",
}
WORDS_OF_MANY = WORDS | {
    SuspectEvent.OUTSIDE: "have not entered the collective that their peers wait in",
    SuspectEvent.MISMATCHED: "differ from their peers",
    SuspectEvent.LATE: "enter collectives late",
    SuspectEvent.SILENT: "left no report, unlike their peers",
}
_BY_FINDING = {
    "p2p.circular_wait": "wait for each other in a circle of sends and receives",
    "rank.no_operation_overdue": "has no overdue operation, unlike its peers",
}
"""Of suspects whose event says less, or more, than the finding."""


def words_of(suspect: Suspect) -> str:
    """What a suspect did, as a verb phrase in the right number."""
    if suspect.evidence and (words := _BY_FINDING.get(suspect.evidence[0].finding)):
        many = len(suspect.ranks) > 1
        return words.replace("has ", "have ").replace("its ", "their ") if many else words
    return (WORDS if len(suspect.ranks) == 1 else WORDS_OF_MANY)[suspect.event]


def _sentence(suspect: Suspect) -> str:
    who, words = seated(suspect), words_of(suspect)
    it = "it" if len(suspect.ranks) == 1 else "they"
    holds = f"may hold the job up: {it} " if suspect.certainty is Certainty.LIKELY else ""
    return f"{who[0].upper()}{who[1:]} {holds}{words}"


def _suspect(together: Sequence[tuple[SuspectRule, Finding]], seats: Mapping[int, Seat]) -> Suspect:
    reading = together[0][0]
    found = list({id(finding): finding for _, finding in together}.values())
    ranks = sorted({rank for finding in found for rank in finding.ranks})
    known = [seats[rank] for rank in ranks if rank in seats]
    hosts = {host for finding in found for host in finding.hosts} if not ranks else set()
    return Suspect(
        ranks=ranks,
        event=reading.event,
        hosts=sorted(hosts | {seat.host for seat in known if seat.host}),
        seats=known[:_MOST_SEATS],
        certainty=reading.certainty,
        unless=reading.unless,
        says=found[0].summary,
        locations=distinct(place for finding in found for place in finding.locations)[:_MOST_PLACES],
        evidence=[_claim(finding) for finding in found[:_MOST_CLAIMS]],
    )


def _claim(finding: Finding) -> Claim:
    first = finding.evidence[0] if finding.evidence else None
    return Claim(
        finding=finding.code,
        claim=finding.summary,
        source=first.source if first else "",
        line=first.line if first else None,
        quote=first.quote if first else "",
    )


def _hold_against(suspects: Sequence[Suspect], finding: Finding) -> None:
    """What a less telling finding says: more of the suspects it is about, or something of others."""
    named: Set[int] = frozenset(finding.ranks)
    for suspect in suspects:
        if named and named <= set(suspect.ranks):
            if len(suspect.evidence) < _MOST_CLAIMS:
                suspect.evidence.append(_claim(finding))
            if not suspect.locations:
                suspect.locations = list(finding.locations[:_MOST_PLACES])
            return
    others = suspects[0].otherwise
    if len(others) < _MOST_OTHERS and named - {rank for suspect in suspects for rank in suspect.ranks}:
        others.append(f"{rank_list(set(named))}: {finding.summary}")
