"""Who is in which collective of a group, and who is not, by what each rank (or a peer) reports of itself.

What the numbers of reports prove. A rank reports the oldest operation of a group that did not end in time; its program
called it. A rank whose last call has a lower number did not call it. Ranks that wait at *different* numbers prove
little: after a broken connection one rank may be an operation further, and a call too many on one rank shifts its
numbers. Nobody is blamed for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddx_tools.analysis.collectives import raising
from ddx_tools.analysis.collectives.raising import ASPECTS, Aspect, Shown, State, Where
from ddx_tools.analysis.collectives.sides import Sides, part
from ddx_tools.model import Evidence, Finding, Location, Severity

_MOST_EVIDENCE = 8
_TRANSFERS = ("send", "recv", "isend", "irecv", "batch_isend_irecv")


@dataclass(frozen=True)
class Call:
    """One operation that a rank called and that did not end."""

    values: Mapping[Aspect, str]
    """What it called, as far as that must be the same on all ranks."""
    evidence: Evidence
    seq: int | None = None
    wait_s: float | None = None
    timeout_s: float | None = None

    @property
    def operation(self) -> str | None:
        """What was called."""
        return self.values.get("operation")


@dataclass
class Member:
    """How far one rank got in a group."""

    rank: int
    call: Call | None = None
    """What it waits in: the oldest that did not end."""
    enqueued: int | None = None
    """The last that its program called."""
    completed: int | None = None
    evidence: list[Evidence] = field(default_factory=list)
    """All that tells of it."""
    hosts: set[str] = field(default_factory=set)

    @property
    def is_idle(self) -> bool:
        """Nothing of its own is pending in the group."""
        return self.call is None and self.enqueued is not None and self.enqueued == self.completed


@dataclass(frozen=True)
class Job:
    """The ranks of the job, as the same source tells."""

    everybody: frozenset[int]
    complete: bool | None = None
    world_size: int | None = None
    silent_among: Callable[[frozenset[int]], tuple[list[int], bool] | None] = lambda waiting: None
    """Of the ranks that wait, those without a word where all others have one, and whether they may merely be absent."""


@dataclass
class Party:
    """One process group of one attempt."""

    basis: str
    members: dict[int, Member]
    job: Job
    label: str | None = None
    is_world: bool = False
    named: bool = False
    """The source tells which group it is; else it may be several."""
    one_point: bool = False
    """What its ranks wait in is one operation, also where nothing numbers it."""
    attempts: Sequence[int] = ()
    spoke: frozenset[int] = frozenset()
    """Ranks that are not silent, though nothing says where they are."""
    places: Callable[[Collection[int]], list[Location]] = lambda ranks: []
    contexts: Callable[[Sequence[int], Collection[int]], dict[str, Any]] = lambda ranks, peers: {}
    """What ranks are in that their peers are not."""

    @property
    def waiting(self) -> dict[int, Call]:
        """The ranks that wait, with what they wait in."""
        return {rank: member.call for rank, member in sorted(self.members.items()) if member.call}


def party_findings(parties: Sequence[Party], explained: Collection[int | None] = ()) -> list[Finding]:
    """Findings about who is in which collective and who is not.

    `explained`: numbers at which something else tells why ranks wait, so that nobody's silence does.
    """
    found: list[Finding] = []
    for party in parties:
        if party.waiting:
            others = {rank for other in parties if other is not party for rank in other.waiting}
            found += _Solver(party, others, explained).findings()
    return found


class _Solver:
    """One group, seen from the operation that most of its ranks wait in."""

    def __init__(self, party: Party, waiting_elsewhere: set[int], explained: Collection[int | None]) -> None:
        self.party, self.job = party, party.job
        self.elsewhere = waiting_elsewhere
        self.explained = explained
        waiting = party.waiting
        counts = Counter(call.seq for call in waiting.values())
        self.seq = min(counts, key=lambda seq: (-counts[seq], -1 if seq is None else seq))
        self.here = {rank: call for rank, call in waiting.items() if call.seq == self.seq}
        self.apart = {rank: call for rank, call in waiting.items() if call.seq != self.seq}
        self.entered = set(self.here) | {each.rank for each in party.members.values() if self._is_inside(each)}
        operation = next(iter(self.here.values())).operation
        self.at_one = self.seq is not None or party.one_point
        self.at = Where(party.basis, party.label, self.seq, operation, party.attempts)

    def findings(self) -> list[Finding]:
        found = [self._mismatch(), self._apart(), *self._missing()]
        if not any(found):
            found.append(self._silent() or self._all_entered())
        return [each for each in found if each is not None]

    def _is_inside(self, member: Member) -> bool:
        """It called the operation, and did not report it: its own limit had not run out."""
        if self.seq is None or member.call or member.enqueued is None or member.completed is None:
            return False
        return member.completed < self.seq <= member.enqueued

    # --- what they are in

    def _mismatch(self) -> Finding | None:
        """Different operations under one number, or else different roots, sizes or data types of one."""
        for aspect in ASPECTS:
            told = {rank: call.values[aspect] for rank, call in self.here.items() if aspect in call.values}
            if len(set(told.values())) > 1:
                return self._differing(aspect, part(told))
        return None

    def _differing(self, aspect: Aspect, sides: Sides) -> Finding:
        one = aspect == "operation"
        if one and not self.at_one:
            sides = Sides(sides.groups, tuple(sorted(self.here)), tie=True)
        ranks = sides.deviating
        first = self.here[ranks[0]].operation
        facts = self.party.contexts(ranks, self.here.keys() - set(ranks)) if one else {}
        if one and set(self.here) >= self.job.everybody:
            facts["complete"] = self.job.complete
        return raising.mismatch(
            aspect,
            sides,
            Where(self.at.basis, self.at.group, self.seq, first, self.at.attempts),
            self._shown(ranks, self._lines(ranks)),
            severity=Severity.FAILURE if self.party.named and self.at_one else Severity.WARNING,
            **facts,
        )

    def _apart(self) -> Finding | None:
        if not self.apart:
            return None
        waiting = self.party.waiting
        sides = part({rank: f"{call.operation} {call.seq}" for rank, call in waiting.items()})
        numbers = {rank: call.seq for rank, call in waiting.items() if call.seq is not None}
        lowest, highest = min(numbers.values()), max(numbers.values())
        return raising.finding(
            "collective.positions_differ",
            Severity.WARNING,
            sides.deviating,
            f"Ranks of {self.party.label or 'one group'} wait at different numbers: {sides.words()}. "
            "That alone does not say who is wrong.",
            Where(self.at.basis, self.at.group, self.seq, None, self.at.attempts),
            self._shown(sides.deviating, self._lines(waiting)),
            operations={value: list(ranks) for value, ranks in sides.groups},
            behind=sorted(rank for rank, seq in numbers.items() if seq == lowest),
            ahead=sorted(rank for rank, seq in numbers.items() if seq == highest),
            shift=highest - lowest,
        )

    # --- who is not in it

    def _missing(self) -> list[Finding]:
        """Who never entered it; all waiting leads back to them, unless they wait in another group."""
        if self.seq is None:
            return []
        others = [each for each in self.party.members.values() if not each.call and each.enqueued is not None]
        lacking = {each.rank: each for each in others if (each.enqueued or 0) < self.seq}
        if not lacking:
            return []
        unclear = bool(self.apart) or bool(self.elsewhere & lacking.keys())
        lines = [told for each in lacking.values() for told in each.evidence[-1:]][: _MOST_EVIDENCE - 2]
        absent = raising.missing(
            self.at,
            lacking,
            self.here,
            self._shown(lacking, self._lines(self.here)[:2] + lines),
            severity=Severity.FAILURE if len(self.here) >= len(lacking) and not unclear else Severity.WARNING,
            last_seq={rank: each.enqueued for rank, each in lacking.items()},
            waiting_elsewhere=sorted(self.elsewhere & lacking.keys()) or None,
            simultaneous="yes",
            unclear=unclear,
        )
        by_state: dict[State, list[int]] = {}
        for rank, each in lacking.items():
            if not unclear and each.completed is not None:
                by_state.setdefault("outside" if each.is_idle else "stands_still", []).append(rank)
        return [
            absent,
            *(self._root(state, ranks, sole=len(by_state) == 1) for state, ranks in sorted(by_state.items())),
        ]

    def _root(self, state: State, ranks: list[int], *, sole: bool, tie: bool | None = None) -> Finding:
        return raising.waited_for(
            state,
            ranks,
            self.here.keys() | self.party.spoke,
            self.at,
            self._shown(ranks, self._lines(self.here)),
            sole=sole,
            tie=len(ranks) >= len(self.here) if tie is None else tie,
            simultaneous="unknown" if state == "silent" else "yes",
            world_size=self.job.world_size,
        )

    def _silent(self) -> Finding | None:
        """All others report that they wait here: the ranks without a word are those that they wait for."""
        if not self._is_world or self.seq in self.explained:
            return None
        silent = self.job.silent_among(frozenset(self.entered | self.party.spoke))
        return self._root("silent", silent[0], sole=True, tie=silent[1]) if silent else None

    def _all_entered(self) -> Finding | None:
        if not self._is_world or len(self.entered) < 2 or self.job.everybody - self.entered:
            return None
        if self.at.operation in (None, *_TRANSFERS):
            return None
        waits = [call.wait_s for call in self.here.values() if call.wait_s is not None]
        limits = [call.timeout_s for call in self.here.values() if call.timeout_s is not None]
        return raising.all_entered(
            self.at,
            self.entered,
            self._shown(self.entered, self._lines(self.here)),
            who="All ranks that the log speaks of",
            severity=Severity.FAILURE if self.job.complete else Severity.WARNING,
            complete=self.job.complete,
            world_size=self.job.world_size,
            wait_s=round(min(waits), 1) if waits else None,
            timeout_s=min(limits, default=None),
        )

    @property
    def _is_world(self) -> bool:
        return self.party.is_world or not self.party.named

    def _shown(self, ranks: Collection[int], evidence: list[Evidence]) -> Shown:
        members = [self.party.members[rank] for rank in ranks if rank in self.party.members]
        return Shown(evidence, self.party.places(ranks), {host for each in members for host in each.hosts})

    def _lines(self, ranks: Iterable[int]) -> list[Evidence]:
        """The lines of some ranks, and one of another to hold against them."""
        waiting = self.party.waiting
        wanted = list(ranks)[:_MOST_EVIDENCE]
        other = next((rank for rank in waiting if rank not in wanted), None)
        wanted = wanted[: _MOST_EVIDENCE - 1] + ([other] if other is not None else [])
        return [waiting[rank].evidence for rank in wanted if rank in waiting]
