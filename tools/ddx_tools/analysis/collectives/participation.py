"""Who is in which collective of a group and who is not, according to what each rank (or a peer) reports.

What reported numbers prove: a rank reports the oldest operation of a group that did not end in time; its program
called it. A rank whose last call has a lower number did not call it. Ranks that wait at *different* numbers prove
little: after a broken connection one rank may be an operation ahead, and one extra call on a rank shifts its numbers.
No rank is blamed for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from ddx_tools.analysis.collectives import findings as raising
from ddx_tools.analysis.collectives.findings import ASPECTS, Aspect, FindingPlace, State, Where
from ddx_tools.analysis.collectives.odd_ranks import Sides, part
from ddx_tools.analysis.collectives.wait_solver import Hold, Known, SolvedWaits, graph_of
from ddx_tools.model.diagnosis import Evidence, Finding, Location, Severity
from ddx_tools.model.grouping import gathered

_MOST_EVIDENCE = 8
_TRANSFERS = ("send", "recv", "isend", "irecv", "batch_isend_irecv")


@dataclass(frozen=True)
class PendingCall:
    """An operation that a rank called and that has not ended."""

    values: Mapping[Aspect, str]
    """The properties of the call that must be the same on all ranks."""
    evidence: Evidence
    seq: int | None = None
    wait_s: float | None = None
    timeout_s: float | None = None

    @property
    def operation(self) -> str | None:
        """Name of the operation."""
        return self.values.get("operation")


@dataclass
class GroupMember:
    """How far one rank got in a group, with the evidence."""

    rank: int
    call: PendingCall | None = None
    """The oldest call that has not ended, in which the rank waits."""
    enqueued: int | None = None
    """Sequence number of the last operation that its program called."""
    completed: int | None = None
    evidence: list[Evidence] = field(default_factory=list)
    """All evidence about the rank."""
    hosts: set[str] = field(default_factory=set)

    @property
    def is_idle(self) -> bool:
        """Whether the rank has nothing pending in the group."""
        return self.call is None and self.enqueued is not None and self.enqueued == self.completed


@dataclass(frozen=True)
class JobRanks:
    """The ranks of the job, according to the source of the participation reports."""

    everybody: frozenset[int]
    complete: bool | None = None
    world_size: int | None = None
    silent_among: Callable[[frozenset[int]], tuple[list[int], bool] | None] = lambda waiting: None
    """Given the waiting ranks: those without a report if all others have one, and whether they may only be absent."""


@dataclass
class GroupParticipation:
    """A process group in one attempt of the job, with what its members reported."""

    basis: str
    members: dict[int, GroupMember]
    job: JobRanks
    label: str | None = None
    is_world: bool = False
    named: bool = False
    """The source names the group; otherwise the reports may come from several groups."""
    one_point: bool = False
    """All its ranks wait in one operation, even if nothing gives a sequence number."""
    attempts: Sequence[int] = ()
    spoke: frozenset[int] = frozenset()
    """Ranks that reported something, although nothing says where they are."""
    places: Callable[[Collection[int]], list[Location]] = lambda ranks: []
    contexts: Callable[[Sequence[int], Collection[int]], dict[str, Any]] = lambda ranks, peers: {}
    """Given ranks and their peers: what the ranks are in that the peers are not."""

    @property
    def waiting(self) -> dict[int, PendingCall]:
        """The waiting ranks, each with the call it waits in."""
        return {rank: member.call for rank, member in sorted(self.members.items()) if member.call}


def party_findings(parties: Sequence[GroupParticipation], explained: Collection[int | None] = ()) -> list[Finding]:
    """Find which ranks are in which collective, which are missing, and which rank all waits lead to.

    The process groups come with what their members reported. `explained` are sequence numbers whose waits have
    another cause: ranks without a report are not blamed for those.
    """
    by_attempt = gathered((tuple(party.attempts), _Seen(party)) for party in parties if party.waiting)
    return [finding for together in by_attempt.values() for finding in _of_attempt(together, explained)]


def _of_attempt(together: Sequence[_Seen], explained: Collection[int | None]) -> list[Finding]:
    """What the groups of one attempt show, and which ranks all their waits lead back to."""
    found = []
    ties: dict[int, bool] = {}
    waiting = {rank for seen in together for rank in seen.party.waiting}
    for seen in together:
        mine = [each for each in (seen.mismatch(), seen.positions(), seen.missing(waiting)) if each is not None]
        if not mine and seen.at.seq not in explained and (silent := seen.silent()):
            seen.hold.unknown = tuple(silent[0])
            ties.update(dict.fromkeys(silent[0], silent[1]))
        elif not mine and (all_in := seen.all_entered()):
            mine.append(all_in)
        found += mine

    def state(rank: int) -> State | None:
        lacking = [seen for seen in together if rank in seen.hold.lacking]
        members = [seen.party.members[rank] for seen in lacking]
        if rank in waiting or any(seen.apart for seen in lacking) or any(each.completed is None for each in members):
            return None
        return "outside" if all(each.is_idle for each in members) else "stands_still"

    known = Known[Hold](state, lambda _: (ties, any(ties.values())), silence="silent")
    graph = graph_of([seen.hold for seen in together], known)
    return [*found, *(_roots(graph, together) if graph else ())]


def _roots(graph: SolvedWaits[Hold], together: Sequence[_Seen]) -> Iterator[Finding]:
    states = {state: ranks for state, ranks in graph.by_state().items() if state != "unseen"}
    for state, ranks in states.items():
        direct = [seen for seen in together if {*seen.hold.blockers, *seen.hold.unknown} & set(ranks)]
        victims = {*graph.victims, *(rank for seen in direct for rank in seen.party.spoke)}
        yield raising.waited_for(
            state,
            ranks,
            victims,
            direct[0].at,
            direct[0].shown(ranks, direct[0].lines(direct[0].here)),
            sole=len(states) == 1,
            tie=graph.tie or (state != "silent" and len(ranks) >= len(victims)),
            simultaneous="unknown" if state == "silent" else "yes",
            world_size=direct[0].party.job.world_size,
        )


class _Seen:
    """One group, seen from the operation that most of its ranks wait in."""

    def __init__(self, party: GroupParticipation) -> None:
        self.party, self.job = party, party.job
        waiting = party.waiting
        counts = Counter(call.seq for call in waiting.values())
        seq = min(counts, key=lambda seq: (-counts[seq], -1 if seq is None else seq))
        self.here = {rank: call for rank, call in waiting.items() if call.seq == seq}
        self.apart = {rank: call for rank, call in waiting.items() if call.seq != seq}
        others = [each for each in party.members.values() if not each.call and each.enqueued is not None]
        self.at = Where(party.basis, party.label, seq, next(iter(self.here.values())).operation, party.attempts)
        self.hold = Hold(at=self.at, waiting={rank: call.wait_s for rank, call in self.here.items()})
        self.entered = set(self.here)
        """Who is in it, even without a report because its own timeout had not expired."""
        if seq is not None:
            self.hold.lacking = tuple(each.rank for each in others if (each.enqueued or 0) < seq)
            self.entered |= {
                each.rank
                for each in others
                if each.completed is not None and each.completed < seq <= (each.enqueued or 0)
            }

    # --- which operation the members are in

    def mismatch(self) -> Finding | None:
        """Return a finding if the ranks that wait under one sequence number made different calls, else None.

        The first difference counts, in the order operation, call site, root, size, data type.
        """
        for aspect in ASPECTS:
            told = {rank: call.values[aspect] for rank, call in self.here.items() if aspect in call.values}
            if len(set(told.values())) > 1:
                return self._differing(aspect, part(told))
        return None

    def _differing(self, aspect: Aspect, sides: Sides) -> Finding:
        one = aspect == "operation"
        at_one = self.at.seq is not None or self.party.one_point
        if one and not at_one:
            sides = Sides(sides.groups, tuple(sorted(self.here)), tie=True)
        ranks = sides.deviating
        facts = self.party.contexts(ranks, self.here.keys() - set(ranks)) if one else {}
        if one and set(self.here) >= self.job.everybody:
            facts["complete"] = self.job.complete
        return raising.mismatch(
            aspect,
            sides,
            replace(self.at, operation=self.here[ranks[0]].operation),
            self.shown(ranks, self.lines(ranks)),
            severity=Severity.FAILURE if self.party.named and at_one else Severity.WARNING,
            **facts,
        )

    def positions(self) -> Finding | None:
        """Return a finding if ranks of the group wait at different sequence numbers, else None.

        That alone does not show which of them is wrong.
        """
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
            "That alone does not show which rank is wrong.",
            replace(self.at, operation=None),
            self.shown(sides.deviating, self.lines(waiting)),
            operations={value: list(ranks) for value, ranks in sides.groups},
            behind=sorted(rank for rank, seq in numbers.items() if seq == lowest),
            ahead=sorted(rank for rank, seq in numbers.items() if seq == highest),
            shift=highest - lowest,
        )

    # --- which members are not in it

    def missing(self, waiting: Set[int]) -> Finding | None:
        """Return the finding that members never entered the collective that most ranks of the group wait in.

        `waiting` are all ranks that wait in any group. None if no member is known to lack the call.
        """
        lacking = {rank: self.party.members[rank] for rank in self.hold.lacking}
        if not lacking:
            return None
        elsewhere = waiting & lacking.keys()
        unclear = bool(self.apart or elsewhere)
        lines = [told for each in lacking.values() for told in each.evidence[-1:]][: _MOST_EVIDENCE - 2]
        return raising.missing(
            self.at,
            lacking,
            self.here,
            self.shown(lacking, self.lines(self.here)[:2] + lines),
            severity=Severity.FAILURE if len(self.here) >= len(lacking) and not unclear else Severity.WARNING,
            last_seq={rank: each.enqueued for rank, each in lacking.items()},
            waiting_elsewhere=sorted(elsewhere) or None,
            simultaneous="yes",
            unclear=unclear,
        )

    def silent(self) -> tuple[list[int], bool] | None:
        """Return the ranks without a report if all other ranks of the job wait in this collective, else None.

        The flag beside them says whether only their output may be missing. For a group that is not known to have all
        ranks of the job, the result is None.
        """
        return self.job.silent_among(frozenset(self.entered | self.party.spoke)) if self._is_world else None

    def all_entered(self) -> Finding | None:
        """Return the finding that every rank of the job entered this collective and none finishes it.

        None if a rank may be missing, or if the operation is a send or receive.
        """
        if not self._is_world or len(self.entered) < 2 or self.job.everybody - self.entered:
            return None
        if self.at.operation in (None, *_TRANSFERS):
            return None
        waits = [call.wait_s for call in self.here.values() if call.wait_s is not None]
        limits = [call.timeout_s for call in self.here.values() if call.timeout_s is not None]
        return raising.all_entered(
            self.at,
            self.entered,
            self.shown(self.entered, self.lines(self.here)),
            who="All ranks that the log mentions",
            severity=Severity.FAILURE if self.job.complete else Severity.WARNING,
            complete=self.job.complete,
            world_size=self.job.world_size,
            wait_s=round(min(waits), 1) if waits else None,
            timeout_s=min(limits, default=None),
        )

    @property
    def _is_world(self) -> bool:
        return self.party.is_world or not self.party.named

    def shown(self, ranks: Collection[int], evidence: list[Evidence]) -> FindingPlace:
        """Return where a finding points: the given evidence, and the source lines and hosts of these ranks."""
        members = [self.party.members[rank] for rank in ranks if rank in self.party.members]
        return FindingPlace(evidence, self.party.places(ranks), {host for each in members for host in each.hosts})

    def lines(self, ranks: Iterable[int]) -> list[Evidence]:
        """The evidence lines of some ranks, and one of another rank for comparison."""
        waiting = self.party.waiting
        wanted = list(ranks)[:_MOST_EVIDENCE]
        other = next((rank for rank in waiting if rank not in wanted), None)
        wanted = wanted[: _MOST_EVIDENCE - 1] + ([other] if other is not None else [])
        return [waiting[rank].evidence for rank in wanted if rank in waiting]
