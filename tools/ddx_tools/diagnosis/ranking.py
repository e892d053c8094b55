"""Causes as candidates: what supports each, what weakens it, and how probable that makes it.

What weakens a clause or a cause, in the order in which it counts:

1. `judge`: an excluding clause of the cause or of a node above it makes the cause impossible.
2. `weight`: a clause that rests on submitted findings alone counts as moderate at most, one that rests on reported
   facts alone as weak, and neither decides.
3. `Candidate.score`: supporting clauses together add at most `_SUPPORT_LIMIT`.
4. `DISCOUNTS`: what causes leave to each other, one after the other.
5. `something_else`: what nobody looked at supports a cause that no page describes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field

from ddx_tools.diagnosis.matching import Match, match_clause, meets, merged
from ddx_tools.diagnosis.playbook import NODE, Cause, Clause, Playbooks, Strength
from ddx_tools.model.basis import HANDED_IN
from ddx_tools.model.diagnosis import Finding, Level, Location, Party, Severity

# Log-odds by strength. One strong clause alone against the plain alternative gives 0.92, moderate 0.73, weak 0.38.
WEIGHTS = {Strength.CONCLUSIVE: 6.0, Strength.STRONG: 4.0, Strength.MODERATE: 2.5, Strength.WEAK: 1.0}
"""What a clause adds to the log-odds of its cause, or takes from them."""
_ALTERNATIVE = 1.5  # the weight of "something else"
_MISSING_EACH, _MISSING_LIMIT = 0.5, 2.0
_SUPPORT_LIMIT = 3.0  # supporting evidence repeats itself; it never outweighs a deciding clause


@dataclass(frozen=True)
class Circumstances:
    """What causes are ranked by besides their own clauses."""

    playbooks: Playbooks
    findings: Sequence[Finding]
    stopped: Set[str]
    """Symptoms that are present of a job that stands or has ended."""
    suffering: Set[int]
    """Ranks that wait, by these symptoms."""
    missing: int
    """How many things the probes could not look at."""


@dataclass
class Candidate:
    """A cause, and its clauses that hold."""

    cause: Cause
    decides: list[Match] = field(default_factory=list)
    supports: list[Match] = field(default_factory=list)
    excluded: list[Match] = field(default_factory=list)
    """What makes it impossible; nothing supports it then."""
    probability: float = 0.0
    most: float = math.inf
    """What its score may be at most."""

    @property
    def is_node(self) -> bool:
        """Whether it only says what happened, while its special cases say why."""
        return self.cause.category == NODE

    @property
    def decided(self) -> float:
        """The weight of its strongest deciding clause."""
        return max((weight(m) for m in self.decides), default=0.0)

    def forget(self, explained: Set[int], one_of: Set[int] | None = None) -> None:
        """Drop the clauses that rest on nothing else than findings (their ids) that another cause accounts for.

        With `one_of` only those among them that rest on one of these.
        """

        def rests_on_more(match: Match) -> bool:
            seen = {id(finding) for finding in match.findings if finding.attributes.get("basis") != "user"}
            return not seen or not seen <= explained or (one_of is not None and not seen & one_of)

        self.decides = [match for match in self.decides if rests_on_more(match)]
        self.supports = [match for match in self.supports if rests_on_more(match)]

    @property
    def score(self) -> float:
        """Its log-odds; a node's are those of its strongest clause."""
        if self.is_node:
            return max((weight(m) for m in self.supports), default=0.0)
        supported = min(_SUPPORT_LIMIT, sum(weight(m) for m in self.supports))
        return min(self.most, self.decided + supported)

    @property
    def shown(self) -> list[Match]:
        """What was seen of it that is a fault by itself: then something is wrong, whatever else is known."""
        telling = [m for m in self.decides + self.supports if weight(m) >= WEIGHTS[Strength.MODERATE]]
        return [m for m in telling if any(f.severity in (Severity.WARNING, Severity.FAILURE) for f in m.findings)]

    @property
    def level(self) -> Level:
        """Established if a deciding clause rests on what was seen."""
        if any(map(is_seen, self.decides)):
            return Level.ESTABLISHED
        return Level.SUPPORTED if self.supports or self.decides else Level.HYPOTHESIS

    @property
    def grounds(self) -> list[Match]:
        """The clauses that say most: the strongest deciding ones, else the supporting ones."""
        if not self.decides:
            return self.supports
        strongest = max(weight(match) for match in self.decides)
        return [match for match in self.decides if weight(match) == strongest]

    def culprits(self) -> Party:
        """Whom the strongest clauses blame."""
        return party(f for name in self.cause.culprits for f in merged(self.grounds, name))


_TOLD = ("user", HANDED_IN)
"""The basis of what somebody told or submitted: it never decides alone."""


def is_seen(match: Match) -> bool:
    """Whether a clause rests on anything that we saw ourselves."""
    return any(finding.attributes.get("basis") not in _TOLD for finding in match.findings)


def weight(match: Match) -> float:
    """The weight of a clause; smaller if it rests on submitted findings only, and least on reported facts only."""
    weight = WEIGHTS[match.clause.strength]
    if is_seen(match):
        return weight
    only_facts = all(finding.code == "user.reported" for finding in match.findings)
    return min(weight, WEIGHTS[Strength.WEAK if only_facts else Strength.MODERATE])


def matches(clauses: Iterable[Clause], findings: Sequence[Finding], culprits: Set[int] = frozenset()) -> list[Match]:
    """The clauses that hold."""
    return [match for clause in clauses if (match := match_clause(clause, findings, culprits))]


def judge(cause: Cause, playbooks: Playbooks, findings: Sequence[Finding]) -> Candidate:
    """A cause as a candidate: which of its clauses hold, unless it or a cause above it is excluded."""
    candidate = Candidate(cause, matches(cause.decides, findings), matches(cause.supports, findings))
    culprits = frozenset(candidate.culprits().ranks)
    line = [cause, *(playbooks.causes[node] for node in sorted(playbooks.above(cause.id)))]
    if excluded := matches([clause for each in line for clause in each.excludes], findings, culprits):
        return Candidate(cause, excluded=excluded)
    return candidate


def party(findings: Iterable[Finding]) -> Party:
    """All ranks, hosts, devices and places of some findings."""
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
    """Of a job that stands or has ended, what only slows jobs decides nothing, unless it is about ranks that the others
    wait for: a setting that is bad for all of them was there while the job ran.
    """
    for candidate in candidates if given.stopped else ():
        blamed = set(candidate.culprits().ranks)
        if given.stopped.isdisjoint(candidate.cause.symptoms) and not (blamed and blamed.isdisjoint(given.suffering)):
            candidate.supports, candidate.decides = candidate.supports + candidate.decides, []


def _explain_away(candidates: list[Candidate], given: Circumstances) -> None:
    """What a well supported cause accounts for no longer supports those above it, nor for weaker rivals.

    So no page has to name what decides another one.
    """
    playbooks = given.playbooks
    established = [c for c in candidates if c.decides and not c.is_node and c.level is Level.ESTABLISHED]
    established.sort(key=lambda c: (-c.decided, -len(playbooks.above(c.cause.id)), -c.score, c.cause.id))
    for strong in established:
        if not strong.decides:  # it was explained itself
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
            # What follows from the cause says nothing more beside what the cause itself rests on.
            other.forget(own | follows, None if weaker or general else follows)


def _give_way(candidates: list[Candidate], _: Circumstances) -> None:
    """What is left over never counts more than a cause that would account for the same and has something for it."""
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
    _account_for_a_stop,  # of a job that stands, what only slows jobs decides nothing
    _explain_away,  # what a stronger cause accounts for supports no other
    _give_way,  # what is left over counts no more than a cause that accounts for the same
)
"""What causes leave to each other, in this order."""


def rank(candidates: list[Candidate], given: Circumstances) -> None:
    """Discount evidence that other causes explain, share probability between causes, and sort them by it."""
    for discount in DISCOUNTS:
        discount(candidates, given)
    _share_probability(candidates, given.missing)
    candidates.sort(key=lambda c: (-c.probability, c.cause.residual, c.cause.id))


def something_else(missing: int) -> float:
    """Return the weight of a cause that no page describes; each thing that was not looked at adds to it."""
    return math.exp(_ALTERNATIVE + min(_MISSING_LIMIT, _MISSING_EACH * missing))


def _share_probability(candidates: list[Candidate], missing: int) -> None:
    alternative = something_else(missing)
    spoken_for = [c for c in candidates if (c.decides or c.supports) and not c.is_node]
    total = alternative + sum(math.exp(c.score) for c in spoken_for)
    for candidate in spoken_for:
        candidate.probability = round(math.exp(candidate.score) / total, 3)


def _meet(finding: Finding, culprits: Party) -> bool:
    """Whether a finding is about the culprits, as far as both name ranks or hosts."""
    ranks = not finding.ranks or not culprits.ranks or set(finding.ranks) & set(culprits.ranks)
    hosts = not finding.hosts or not culprits.hosts or set(finding.hosts) & set(culprits.hosts)
    return bool(ranks and hosts)
