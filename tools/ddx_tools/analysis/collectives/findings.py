"""Builds findings about collectives, for every source: who is in one, who is missing, and how the ranks differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ddx_tools.analysis.collectives.odd_ranks import Sides
from ddx_tools.model.diagnosis import Evidence, Finding, Location, Severity, rank_list

Aspect = Literal["operation", "call_site", "root", "shape", "dtype"]
ASPECTS: dict[Aspect, tuple[str, str]] = {
    "operation": ("operations", "operations"),
    "call_site": ("places", "places"),
    "root": ("roots", "roots"),
    "shape": ("sizes", "sizes"),
    "dtype": ("dtypes", "data types"),
}
"""What ranks may differ in, most telling first: the attribute that holds the values, and the words for it."""

State = Literal[
    "outside", "device_behind", "elsewhere", "circle", "no_record", "other_run", "stands_still", "silent", "unseen"
]
_WORDS: dict[State, str] = {
    "outside": "{has} no pending operation of {their} own",
    "device_behind": "called the operation, but {their} GPU never started it",
    "elsewhere": "took a different path from {their} peers",
    "circle": "{wait} for others that wait for {them}",
    "no_record": "left no record",
    "other_run": "left only a record of another run",
    "stands_still": "{has} earlier calls pending that {their} peers finished long ago",
    "silent": "{has} no report in the log",
    "unseen": "{are} in a call that {their} flight record does not show",
}
_MANY = {"their": "their", "wait": "wait", "them": "them", "has": "have", "are": "are"}
_ONE = {"their": "its", "wait": "waits", "them": "it", "has": "has", "are": "is"}
_MOST_VALUES = 64


@dataclass(frozen=True)
class Where:
    """A collective of a group, and the source that reports it."""

    basis: str
    group: str | None = None
    seq: int | None = None
    operation: str | None = None
    attempts: Sequence[int] = ()

    @property
    def number(self) -> str:
        """The collective and its group in words: `collective 412 of default_pg`."""
        number = "a collective" if self.seq is None else f"collective {self.seq}"
        return f"{number} of {self.group or 'an unnamed group'}"

    def __str__(self) -> str:
        return f"{self.operation} ({self.number})" if self.operation else self.number


@dataclass(frozen=True)
class FindingPlace:
    """The evidence, source lines and hosts that a finding points to."""

    evidence: list[Evidence] = field(default_factory=list)
    locations: list[Location] = field(default_factory=list)
    hosts: Collection[str] = ()


def finding(
    code: str, severity: Severity, ranks: Collection[int], summary: str, at: Where, shown: FindingPlace, **facts: Any
) -> Finding:
    """Build a finding about a collective; facts that are unknown (None) are left out."""
    told = {"seq": at.seq, "operation": at.operation, **facts, "basis": at.basis, "attempts": list(at.attempts) or None}
    return Finding(
        code=code,
        severity=severity,
        ranks=sorted(ranks),
        hosts=sorted(shown.hosts),
        group=at.group,
        summary=summary[:600],
        evidence=shown.evidence,
        locations=shown.locations,
        attributes={name: value for name, value in told.items() if value is not None},
    )


def mismatch(
    aspect: Aspect,
    sides: Sides,
    at: Where,
    shown: FindingPlace,
    *,
    severity: Severity = Severity.FAILURE,
    more: str = "",
    says: str = "",
    **facts: Any,
) -> Finding:
    """Build the finding that ranks made different calls under one sequence number of a group.

    `aspect` is what differs; `sides` groups the ranks by its value, and the deviating ones become the finding's ranks.
    `more` is appended to the summary, `says` replaces it, `facts` are attributes.
    """
    name, words = ASPECTS[aspect]
    one = aspect == "operation"
    subject = at.number[0].upper() + at.number[1:] if one else str(at)
    tie = " Neither side has a majority." if sides.tie else ""
    said = (
        f"{subject} {'is not the same on all ranks' if one else f'has different {words}'}: {sides.words()}.{tie}{more}"
    )
    return finding(
        f"collective.{aspect}_mismatch",
        severity,
        sides.deviating,
        says or said,
        at,
        shown,
        **{
            "peer_operation": sides.groups[0][0] if one and not sides.tie else None,
            "rank0": sides.deviating[0] == 0,
            "finished": None if one or aspect == "call_site" else False,
            name: {value: list(ranks) for value, ranks in sides.groups},
            "minority": not sides.tie,
            "tie": sides.tie,
            **facts,
        },
    )


def missing(
    at: Where,
    ranks: Collection[int],
    waiting: Collection[int],
    shown: FindingPlace,
    *,
    severity: Severity,
    simultaneous: str,
    last_seq: Mapping[int, int | None] | None = None,
    balance: int | None = None,
    unclear: bool = False,
    says: str = "",
    **facts: Any,
) -> Finding:
    """Build the finding that ranks never entered a collective in which others wait.

    `balance`: how many more ranks wait than are missing; None counts `waiting` and `ranks`. `unclear`: the missing
    ranks may be waiting themselves.
    """
    balance = len(waiting) - len(ranks) if balance is None else balance
    wait = "waits" if len(waiting) == 1 else "wait"
    said = f"{rank_list(set(ranks)).capitalize()} never entered {at}, in which {rank_list(set(waiting))} {wait}."
    told = {
        "minority": balance > 0,
        "tie": balance == 0 or unclear,
        "missing": sorted(ranks),
        "waiting": sorted(waiting),
    }
    lasts = {str(rank): seq for rank, seq in list((last_seq or {}).items())[:_MOST_VALUES]}
    told |= {"last_seq": lasts or None, "simultaneous": simultaneous, **facts}
    return finding("collective.missing_ranks", severity, ranks, says or said, at, shown, **told)


def waited_for(
    state: State,
    ranks: Collection[int],
    victims: Collection[int],
    at: Where,
    shown: FindingPlace,
    *,
    place: bool = True,
    says: str = "",
    **facts: Any,
) -> Finding:
    """Build the finding that all waits of `victims` lead to `ranks`; `state` is how these block them.

    `at` is the collective that the victims wait in; with `place`, the summary names it. `says` replaces the summary,
    and `facts` are further attributes.
    """
    words = _WORDS[state].format(**(_ONE if len(ranks) == 1 else _MANY))
    who, others = rank_list(set(ranks)), set(victims) - set(ranks)
    verb = "wait" if len(others) > 1 else "waits"
    where = f" in {at}" if place else ""
    waits = f"{rank_list(others).capitalize()} {verb} for {who}{where}; {who}" if others else who.capitalize()
    return finding(
        "rank.waited_for",
        Severity.WARNING if state in ("silent", "unseen") else Severity.FAILURE,
        ranks,
        says or f"{waits} {words}.",
        at,
        shown,
        **{"state": state, "waiting": len(victims), **facts},
    )


def if_hung(
    state: State, ranks: Collection[int], at: Where, shown: FindingPlace, *, says: str = "", **facts: Any
) -> Finding:
    """Build the notice that all others would wait for these ranks if the job hung.

    It is for flight records that do not show whether it did. `state` is how the ranks would block the others; `says`
    replaces the summary.
    """
    words = _WORDS[state].format(**(_ONE if len(ranks) == 1 else _MANY))
    who = rank_list(set(ranks))
    said = f"If the job hung when these records were taken, all others wait for {who}; {who} {words}."
    return finding("rank.awaited_if_hung", Severity.NOTICE, ranks, says or said, at, shown, state=state, **facts)


def alone(at: Where, ranks: Collection[int], shown: FindingPlace) -> Finding:
    """Build the notice that only these ranks made a call, while the others have nothing pending."""
    summary = f"{rank_list(set(ranks)).capitalize()} alone called {at}; the others have nothing pending."
    return finding("rank.alone_ahead", Severity.NOTICE, ranks, summary, at, shown)


def group_member_missing(
    at: Where, missing: Collection[int], waiting: Collection[int], place: str, shown: FindingPlace
) -> Finding:
    """Build the notice that the `missing` ranks seem to have left a process group that others wait in.

    The `waiting` ranks are in a call that passes a group; the smallest mesh group with them also has the missing ranks.
    `place` is text put after the operation's name.
    """
    who, victims = rank_list(set(missing)), rank_list(set(waiting))
    summary = (
        f"{victims.capitalize()} wait in {at.operation}{place}, which passes a process group. The smallest mesh group "
        f"that contains them also includes {who}, which {'is' if len(missing) == 1 else 'are'} in a different call."
    )
    return finding("collective.group_member_missing", Severity.NOTICE, missing, summary, at, shown)


def all_entered(
    at: Where, ranks: Collection[int], shown: FindingPlace, *, who: str, severity: Severity, **facts: Any
) -> Finding:
    """Build the finding that all ranks entered a collective and none finishes it. `who` names the ranks in words."""
    said = f"{who} entered {at}, but none of them has finished it."
    return finding("collective.all_entered", severity, ranks, said, at, shown, **facts)
