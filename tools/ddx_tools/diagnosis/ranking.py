"""Ranks causes as candidates: what supports each, what weakens it, and how probable that makes it.

What weakens a clause or a cause, in the order in which it is applied:

1. `judge`: an excluding clause of the cause or of a node above it makes the cause impossible.
2. `weight`: a clause that rests only on submitted findings counts as moderate at most, one that rests only on
   reported facts as weak, and neither decides.
3. `Candidate.score`: supporting clauses together add at most `_SUPPORT_LIMIT`.
4. `DISCOUNTS`: how causes discount each other's evidence, one rule after another.
5. `something_else`: missing evidence supports a cause that no page describes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field

from ddx_tools.diagnosis.matching import Match, match_clause, meets, merged
from ddx_tools.diagnosis.playbook import NODE, Cause, Clause, Playbooks, Strength
from ddx_tools.model.basis import HANDED_IN
from ddx_tools.model.diagnosis import Finding, Level, Location, Party, Severity

# Log-odds per strength. A single strong clause against the plain alternative gives 0.92, moderate 0.73, weak 0.38.
WEIGHTS = {Strength.CONCLUSIVE: 6.0, Strength.STRONG: 4.0, Strength.MODERATE: 2.5, Strength.WEAK: 1.0}
"""What a clause adds to the log-odds of its cause, or subtracts from them."""
_ALTERNATIVE = 1.5  # the weight of "something else"
_MISSING_EACH, _MISSING_LIMIT = 0.5, 2.0
_SUPPORT_LIMIT = 3.0  # supporting evidence is repetitive; it never outweighs a deciding clause


@dataclass(frozen=True)
class Circumstances:
    """Facts about the case that affect the ranking of causes, apart from their own clauses."""

    playbooks: Playbooks
    findings: Sequence[Finding]
    stopped: Set[str]
    """Present symptoms of a job that hangs or has ended."""
    suffering: Set[int]
    """Ranks that wait, according to these symptoms."""
    missing: int
    """How many things the probes could not examine."""


@dataclass
class Candidate:
    """A cause with those of its clauses that hold, and its score."""

    cause: Cause
    decides: list[Match] = field(default_factory=list)
    supports: list[Match] = field(default_factory=list)
    excluded: list[Match] = field(default_factory=list)
    """Clauses that make it impossible; then nothing supports it."""
    probability: float = 0.0
    most: float = math.inf
    """Upper limit of its score."""

    @property
    def is_node(self) -> bool:
        """Whether it only says what happened, unlike its special cases, which say why."""
        return self.cause.category == NODE

    @property
    def decided(self) -> float:
        """The weight of the cause's strongest deciding clause."""
        return max((weight(m) for m in self.decides), default=0.0)

    def forget(self, explained: Set[int], one_of: Set[int] | None = None) -> None:
        """Drop the clauses that rest only on findings (given by id) that another cause accounts for.

        With `one_of`, drop only those that also rest on one of these.
        """

        def rests_on_more(match: Match) -> bool:
            seen = {id(finding) for finding in match.findings if finding.attributes.get("basis") != "user"}
            return not seen or not seen <= explained or (one_of is not None and not seen & one_of)

        self.decides = [match for match in self.decides if rests_on_more(match)]
        self.supports = [match for match in self.supports if rests_on_more(match)]

    @property
    def score(self) -> float:
        """The log-odds of the cause; for a node, those of its strongest clause."""
        if self.is_node:
            return max((weight(m) for m in self.supports), default=0.0)
        blamed = self._blamed(self.grounds)
        agreeing = [m for m in self.supports if not blamed or not (theirs := self._blamed([m])) or blamed & theirs]
        supported = min(_SUPPORT_LIMIT, sum(weight(m) for m in agreeing))
        return min(self.most, self.decided + supported)

    def _blamed(self, matches: Iterable[Match]) -> set[int]:
        """The ranks that these clauses blame: what is known of another rank does not add to their weight."""
        return {rank for name in self.cause.culprits for finding in merged(matches, name) for rank in finding.ranks}

    @property
    def shown(self) -> list[Match]:
        """Matches that show a fault by themselves: then something is wrong, whatever else is known."""
        telling = [m for m in self.decides + self.supports if weight(m) >= WEIGHTS[Strength.MODERATE]]
        return [m for m in telling if any(f.severity in (Severity.WARNING, Severity.FAILURE) for f in m.findings)]

    @property
    def level(self) -> Level:
        """How well the cause is supported: established if a deciding clause rests on what ddx itself saw."""
        if any(map(is_seen, self.decides)):
            return Level.ESTABLISHED
        return Level.SUPPORTED if self.supports or self.decides else Level.HYPOTHESIS

    @property
    def grounds(self) -> list[Match]:
        """The most informative clauses: the strongest deciding ones, else the supporting ones."""
        if not self.decides:
            return self.supports
        strongest = max(weight(match) for match in self.decides)
        return [match for match in self.decides if weight(match) == strongest]

    def culprits(self) -> Party:
        """The ranks, hosts and places that the strongest clauses blame."""
        return party(f for name in self.cause.culprits for f in merged(self.grounds, name))


_OF_MACHINES = ("gpu", "host")
"""First words of the codes of findings about machines."""


def hosts_of_job(findings: Iterable[Finding]) -> set[str]:
    """Return the hosts in findings about the job itself, such as its logs, stacks and records.

    Findings about GPUs, hosts or the network are ignored: they may be from machines outside the job.
    """
    return {host for f in findings if f.code.partition(".")[0] not in (*_OF_MACHINES, "network") for host in f.hosts}


def is_untied_warning(match: Match, hosts: Set[str]) -> bool:
    """Whether a clause rests only on warnings about GPUs or hosts outside the job.

    `hosts` are those of the job; False if it is empty. A warning that names a rank belongs to the job.
    """
    return bool(hosts) and all(
        f.severity is Severity.WARNING
        and f.code.partition(".")[0] in _OF_MACHINES
        and not f.ranks
        and bool(f.hosts)
        and hosts.isdisjoint(f.hosts)
        for f in match.findings
    )


_TOLD = ("user", HANDED_IN)
"""The bases of reported and submitted findings, which never decide alone."""


def is_seen(match: Match) -> bool:
    """Whether a clause rests on at least one finding that ddx made itself."""
    return any(finding.attributes.get("basis") not in _TOLD for finding in match.findings)


def weight(match: Match) -> float:
    """The weight of a clause; smaller if it rests only on submitted findings, smallest if only on reported facts."""
    weight = WEIGHTS[match.clause.strength]
    if is_seen(match):
        return weight
    only_facts = all(finding.code == "user.reported" for finding in match.findings)
    return min(weight, WEIGHTS[Strength.WEAK if only_facts else Strength.MODERATE])


def matches(clauses: Iterable[Clause], findings: Sequence[Finding], culprits: Set[int] = frozenset()) -> list[Match]:
    """Match clauses against findings; returns those that hold."""
    return [match for clause in clauses if (match := match_clause(clause, findings, culprits))]


def judge(cause: Cause, playbooks: Playbooks, findings: Sequence[Finding]) -> Candidate:
    """Judge a cause as a candidate: which of its clauses hold, unless it or a cause above it is excluded."""
    candidate = Candidate(cause, matches(cause.decides, findings), matches(cause.supports, findings))
    culprits = frozenset(candidate.culprits().ranks)
    line = [cause, *(playbooks.causes[node] for node in sorted(playbooks.above(cause.id)))]
    if excluded := matches([clause for each in line for clause in each.excludes], findings, culprits):
        return Candidate(cause, excluded=excluded)
    return candidate


def party(findings: Iterable[Finding]) -> Party:
    """Collect all ranks, hosts, devices and places in findings."""
    found = list(findings)
    places: dict[tuple[str, int | None, str | None], Location] = {}
    for finding in found:
        for place in finding.locations:
            places.setdefault((place.file, place.line, place.function), place)
    return Party(
        ranks=sorted({rank for f in found for rank in f.ranks}),
        hosts=sorted({host for f in found for host in f.hosts}),
        devices=sorted({device for f in found for device in f.attributes.get("devices", [])}),
        locations=list(places.values()),
    )


def _account_for_a_stop(candidates: list[Candidate], given: Circumstances) -> None:
    """If a job hangs or has ended, causes that only slow jobs decide nothing, unless they are about awaited ranks: a
    setting that is bad for all ranks was already there while the job ran.
    """
    for candidate in candidates if given.stopped else ():
        blamed = set(candidate.culprits().ranks)
        if given.stopped.isdisjoint(candidate.cause.symptoms) and not (blamed and blamed.isdisjoint(given.suffering)):
            candidate.supports, candidate.decides = candidate.supports + candidate.decides, []


def _explain_away(candidates: list[Candidate], given: Circumstances) -> None:
    """What a well-supported cause accounts for no longer supports the causes above it or weaker rivals.

    So no page has to list what decides another page.
    """
    playbooks = given.playbooks
    established = [c for c in candidates if c.decides and not c.is_node and c.level is Level.ESTABLISHED]
    established.sort(key=lambda c: (-c.decided, -len(playbooks.above(c.cause.id)), -c.score, c.cause.id))
    for strong in established:
        if not strong.decides:  # it was itself explained away
            continue
        above, below = playbooks.above(strong.cause.id), playbooks.below(strong.cause.id)
        own = {id(finding) for match in strong.grounds for finding in match.findings}
        blamed = strong.culprits()
        follows = {id(f) for f in given.findings for c in strong.cause.explains if meets(f, c) and _meet(f, blamed)}
        for other in candidates:
            if other is strong or other.is_node or other.cause.id in below:
                continue
            surely = strong.decided >= WEIGHTS[Strength.STRONG]
            less = other.decided < strong.decided and other.score < strong.score
            weaker = surely and (other.cause.residual or less)
            general = other.cause.id in above and other.decided <= strong.decided
            # Consequences of the cause add nothing to what the cause itself rests on.
            other.forget(own | follows, None if weaker or general else follows)


def _give_way(candidates: list[Candidate], _: Circumstances) -> None:
    """A residual cause never outweighs a supported cause that would account for the same findings."""
    for general in candidates:
        if not general.cause.residual or not general.decides:
            continue
        seen = [finding for match in general.grounds for finding in match.findings]
        known = {id(finding) for finding in seen}
        for special in candidates:
            more = (m for m in special.decides + special.supports if {id(f) for f in m.findings} - known)
            told = max((weight(m) for m in more), default=0.0)
            explains = any(meets(f, c) for f in seen for c in special.cause.explains)
            if explains and not special.cause.residual and told >= WEIGHTS[Strength.MODERATE]:
                general.most = min(general.most, special.score)


DISCOUNTS: tuple[Callable[[list[Candidate], Circumstances], None], ...] = (
    _account_for_a_stop,  # if a job hangs, causes that only slow jobs decide nothing
    _explain_away,  # what a stronger cause accounts for supports no other cause
    _give_way,  # a residual cause does not outweigh a cause that accounts for the same
)
"""The rules by which causes discount each other's evidence, in order."""


def rank(candidates: list[Candidate], given: Circumstances) -> None:
    """Discount evidence that other causes explain, distribute probability over the causes, and sort by it."""
    for discount in DISCOUNTS:
        discount(candidates, given)
    _share_probability(candidates, given.missing)
    candidates.sort(key=lambda c: (-c.probability, c.cause.residual, c.cause.id))


def something_else(missing: int) -> float:
    """Return the odds, not the log-odds, of a cause that no playbook page describes.

    `missing`: how many things could not be examined; each of them raises the odds, up to a limit.
    """
    return math.exp(_ALTERNATIVE + min(_MISSING_LIMIT, _MISSING_EACH * missing))


def _share_probability(candidates: list[Candidate], missing: int) -> None:
    alternative = something_else(missing)
    spoken_for = [c for c in candidates if (c.decides or c.supports) and not c.is_node]
    total = alternative + sum(math.exp(c.score) for c in spoken_for)
    for candidate in spoken_for:
        candidate.probability = round(math.exp(candidate.score) / total, 3)


def _meet(finding: Finding, culprits: Party) -> bool:
    """Whether a finding is about the culprits, if both name ranks or hosts."""
    ranks = not finding.ranks or not culprits.ranks or set(finding.ranks) & set(culprits.ranks)
    hosts = not finding.hosts or not culprits.hosts or set(finding.hosts) & set(culprits.hosts)
    return bool(ranks and hosts)
