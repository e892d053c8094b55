"""The differential: findings judged by the playbooks.

A clause that holds adds its strength as log-odds (`contradicts` takes it); what could not be seen speaks for others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from ddx_tools.matching import Match, fill, match_clause, meets, merged
from ddx_tools.model import (
    CandidateCause,
    Claim,
    Diagnosis,
    Finding,
    Level,
    Location,
    Missing,
    Narrowed,
    Party,
    RuledOut,
    Severity,
    Verdict,
    rank_list,
)
from ddx_tools.next_check import next_check
from ddx_tools.playbook import NODE, Cause, Clause, Playbooks, Strength

# Log-odds by strength. One strong clause alone against the plain alternative gives 0.92, moderate 0.73, weak 0.38.
_WEIGHTS = {Strength.CONCLUSIVE: 6.0, Strength.STRONG: 4.0, Strength.MODERATE: 2.5, Strength.WEAK: 1.0}
_SUPPORT_LIMIT = 3.0  # supporting evidence repeats itself; it never outweighs a deciding clause
_ALTERNATIVE = 1.5  # the weight of "something else"
_MISSING_EACH, _MISSING_LIMIT = 0.5, 2.0
_DIAGNOSED_FROM = 0.58  # below this a named cause would be a guess
_SAFE_FROM = 0.6  # a node with less is no answer
_LISTED_FROM = 0.02


@dataclass
class _Candidate:
    cause: Cause
    decides: list[Match] = field(default_factory=list)
    supports: list[Match] = field(default_factory=list)
    contradicts: list[Match] = field(default_factory=list)
    probability: float = 0.0
    most: float = math.inf
    """What its score may be at most."""

    @property
    def is_node(self) -> bool:
        """It only says what happened, and its special cases say why."""
        return self.cause.category == NODE

    @property
    def decided(self) -> float:
        """The weight of its strongest deciding clause."""
        return max((_weight(m) for m in self.decides), default=0.0)

    def forget(self, explained: Set[int]) -> None:
        """Drop the clauses that rest on nothing else than findings (their ids) that another cause accounts for."""

        def rests_on_more(match: Match) -> bool:
            seen = {id(finding) for finding in match.findings if finding.attributes.get("basis") != "user"}
            return not seen or not seen <= explained

        self.decides = [match for match in self.decides if rests_on_more(match)]
        self.supports = [match for match in self.supports if rests_on_more(match)]

    @property
    def score(self) -> float:
        supported = min(_SUPPORT_LIMIT, sum(_weight(m) for m in self.supports))
        return min(self.most, self.decided + supported - sum(_weight(m) for m in self.contradicts))

    @property
    def shown(self) -> list[Match]:
        """What was seen of it that is a fault by itself: then something is wrong, whatever else is known."""
        telling = [m for m in self.decides + self.supports if _weight(m) >= _WEIGHTS[Strength.MODERATE]]
        return [m for m in telling if any(f.severity in (Severity.WARNING, Severity.FAILURE) for f in m.findings)]

    @property
    def level(self) -> Level:
        refuted = any(_weight(match) >= _WEIGHTS[Strength.STRONG] for match in self.contradicts)
        if any(map(_is_seen, self.decides)) and not refuted:
            return Level.ESTABLISHED
        return Level.SUPPORTED if self.supports or self.decides else Level.HYPOTHESIS

    @property
    def grounds(self) -> list[Match]:
        """The clauses that say most: the strongest deciding ones, else the supporting ones."""
        if not self.decides:
            return self.supports
        strongest = max(_weight(match) for match in self.decides)
        return [match for match in self.decides if _weight(match) == strongest]

    def culprits(self) -> Party:
        return _party(f for name in self.cause.culprits for f in merged(self.grounds, name))


def diagnose(findings: Sequence[Finding], playbooks: Playbooks, missing: Sequence[Missing] = ()) -> Diagnosis:
    """Judge findings. `missing` is what the probes could not look at; it lowers every probability."""
    present = {s.id: m for s in playbooks.symptoms.values() if (m := _matches(s.present, findings))}
    judged = [_judge(cause, findings) for cause in playbooks.causes.values()]
    all_is_well = [m for symptom in playbooks.symptoms.values() for m in _matches(symptom.absent, findings)]
    for candidate in judged if not all_is_well else ():
        if (shown := candidate.shown) and not set(candidate.cause.symptoms) & set(present):
            present[candidate.cause.symptoms[0]] = shown
    candidates = [candidate for candidate in judged if set(candidate.cause.symptoms) & set(present)]
    _account_for_a_stop(candidates, present, playbooks)
    _explain_away(candidates, playbooks, findings)
    _give_way(candidates)
    _share_probability(candidates, len(missing))
    candidates.sort(key=lambda c: (-c.probability, c.cause.residual, c.cause.id))
    listed = [c for c in candidates if (c.decides or c.supports) and not c.is_node and c.probability >= _LISTED_FROM]
    verdict, well = _verdict(listed, present, playbooks, findings)
    leading = listed[0] if listed and verdict is Verdict.DIAGNOSED else None
    culprits = leading.culprits() if leading else Party()
    victims = _victims(present, playbooks, culprits)
    narrowed = _narrowed(leading, candidates, playbooks, len(missing)) if present else None
    return Diagnosis(
        verdict=verdict,
        headline=_headline(verdict, leading, culprits, listed, well, narrowed),
        narrowed_to=narrowed,
        causes=[] if verdict is Verdict.HEALTHY else _published_all(listed, playbooks),
        culprits=culprits,
        victims=victims,
        chain=_chain(leading, present, playbooks, victims) if leading else [],
        evidence=_claims(
            leading.grounds + leading.supports if leading else [m for ms in present.values() for m in ms] + well
        ),
        ruled_out=[
            RuledOut(id=c.cause.id, why=_says(c.contradicts[0]))
            for c in candidates
            if c.contradicts and c is not leading
        ],
        fix=_filled(leading, leading.cause.fix) if leading else [],
        verify=_filled(leading, leading.cause.verify) if leading else [],
        next_check=None
        if verdict is Verdict.HEALTHY
        else next_check(leading.cause if leading else None, [c.cause for c in listed], present, playbooks, findings),
        missing=list(missing),
    )


_TOLD = ("user", "added")
"""The basis of what somebody told or handed in: it never decides alone."""


def _is_seen(match: Match) -> bool:
    """Whether a clause rests on anything that we saw ourselves."""
    return any(finding.attributes.get("basis") not in _TOLD for finding in match.findings)


def _weight(match: Match) -> float:
    """Of what was handed in alone it is less than of what was seen."""
    weight = _WEIGHTS[match.clause.strength]
    handed_in = all(finding.attributes.get("basis") == "added" for finding in match.findings)
    return min(weight, _WEIGHTS[Strength.MODERATE]) if handed_in else weight


def _matches(clauses: Iterable[Clause], findings: Sequence[Finding], culprits: Set[int] = frozenset()) -> list[Match]:
    return [match for clause in clauses if (match := match_clause(clause, findings, culprits))]


def _judge(cause: Cause, findings: Sequence[Finding]) -> _Candidate:
    candidate = _Candidate(cause, _matches(cause.decides, findings), _matches(cause.supports, findings))
    culprits = frozenset(candidate.culprits().ranks)
    candidate.contradicts = _matches(cause.contradicts, findings, culprits)
    return candidate


def _something_else(missing: int) -> float:
    return math.exp(_ALTERNATIVE + min(_MISSING_LIMIT, _MISSING_EACH * missing))


def _account_for_a_stop(candidates: list[_Candidate], present: dict[str, list[Match]], playbooks: Playbooks) -> None:
    """Of a job that stands or has ended, what only slows jobs decides nothing, unless it is about ranks that the others
    wait for: a setting that is bad for all of them was there while the job ran.
    """
    stopped = {symptom: m for symptom, m in present.items() if not playbooks.symptoms[symptom].goes_on}
    suffering = set(_victims(stopped, playbooks, Party()).ranks)
    for candidate in candidates if stopped else ():
        blamed = set(candidate.culprits().ranks)
        if stopped.keys().isdisjoint(candidate.cause.symptoms) and not (blamed and blamed.isdisjoint(suffering)):
            candidate.supports, candidate.decides = candidate.supports + candidate.decides, []


def _explain_away(candidates: list[_Candidate], playbooks: Playbooks, findings: Sequence[Finding]) -> None:
    """What a well supported cause accounts for no longer speaks for those above it, nor for weaker rivals.

    So no page has to name what decides another one.
    """
    established = [c for c in candidates if c.decides and not c.is_node and c.level is Level.ESTABLISHED]
    established.sort(key=lambda c: (-c.decided, -len(playbooks.above(c.cause.id)), -c.score, c.cause.id))
    for strong in established:
        if not strong.decides:  # it was explained itself
            continue
        above, below = playbooks.above(strong.cause.id), playbooks.below(strong.cause.id)
        own = {id(finding) for match in strong.grounds for finding in match.findings}
        blamed = strong.culprits()
        follows = {id(f) for f in findings for c in strong.cause.explains if meets(f, c) and _meet(f, blamed)}
        for other in candidates:
            if other is strong or other.is_node or other.cause.id in below:
                continue
            surely = strong.decided >= _WEIGHTS[Strength.STRONG]
            less = other.decided < strong.decided and other.score < strong.score
            weaker = surely and (other.cause.residual or less)
            general = other.cause.id in above and other.decided <= strong.decided
            other.forget(own | follows if weaker or general else follows)


def _give_way(candidates: list[_Candidate]) -> None:
    """What is left over never counts more than a cause that would account for the same and has something for it."""
    for general in candidates:
        if not general.cause.residual or not general.decides:
            continue
        seen = [finding for match in general.grounds for finding in match.findings]
        known = {id(finding) for finding in seen}
        for special in candidates:
            more = (m for m in special.decides + special.supports if {id(f) for f in m.findings} - known)
            told = max((_weight(m) for m in more), default=0.0)
            explains = any(meets(f, c) for f in seen for c in special.cause.explains)
            if explains and not special.cause.residual and told >= _WEIGHTS[Strength.MODERATE]:
                general.most = min(general.most, special.score)


def _meet(finding: Finding, culprits: Party) -> bool:
    """Whether a finding is about the culprits, as far as both name ranks or hosts."""
    ranks = not finding.ranks or not culprits.ranks or set(finding.ranks) & set(culprits.ranks)
    hosts = not finding.hosts or not culprits.hosts or set(finding.hosts) & set(culprits.hosts)
    return bool(ranks and hosts)


def _share_probability(candidates: list[_Candidate], missing: int) -> None:
    alternative = _something_else(missing)
    spoken_for = [c for c in candidates if (c.decides or c.supports) and not c.is_node]
    total = alternative + sum(math.exp(c.score) for c in spoken_for)
    for candidate in spoken_for:
        candidate.probability = round(math.exp(candidate.score) / total, 3)


def _narrowed(
    leading: _Candidate | None, candidates: list[_Candidate], playbooks: Playbooks, missing: int
) -> Narrowed | None:
    """The deepest node that holds most of the weight: what is open is only which of its special cases it is."""
    if leading:
        return Narrowed(id=leading.cause.id, title=leading.cause.title, mass=leading.probability)
    weights = {c.cause.id: math.exp(c.score) for c in candidates if c.decides or c.supports}
    leaves = {cause: weight for cause, weight in weights.items() if not playbooks.below(cause)}
    total = _something_else(missing) + sum(leaves.values())
    found = []
    for node in playbooks.causes.values():
        below = playbooks.below(node.id)
        if not below:
            continue
        known = sum(weight for cause, weight in leaves.items() if cause in below)
        # What is seen of a node says that much of all that lies below it, named or not.
        rest = max(
            0.0, max((weights[n] for n in below | {node.id} if n in weights and n not in leaves), default=0.0) - known
        )
        mass = (known + rest) / (total + rest)
        found.append((mass >= _SAFE_FROM, len(playbooks.above(node.id)), mass, node.id))
    safe, _, mass, best = max(found, default=(False, 0, 0.0, ""))
    return Narrowed(id=best, title=playbooks.causes[best].title, mass=round(mass, 3)) if safe else None


def _verdict(
    listed: list[_Candidate],
    present: dict[str, list[Match]],
    playbooks: Playbooks,
    findings: Sequence[Finding],
) -> tuple[Verdict, list[Match]]:
    if not present:
        well = [m for symptom in playbooks.symptoms.values() for m in _matches(symptom.absent, findings)]
        return (Verdict.HEALTHY if well else Verdict.UNDECIDED), well
    if listed and listed[0].level is Level.ESTABLISHED:
        # A cause and a special case of it that blame the same ranks are one answer; rivals are not.
        blamed, first = listed[0].culprits(), listed[0].cause.id
        kin = playbooks.above(first) | playbooks.below(first)
        others = (c for c in listed[1:] if c.cause.id in kin and c.level is Level.ESTABLISHED)
        agreed = [listed[0], *(c for c in others if _same(c.culprits(), blamed))]
        if sum(c.probability for c in agreed) >= _DIAGNOSED_FROM:
            return Verdict.DIAGNOSED, []
    return Verdict.UNDECIDED, []


def _same(one: Party, other: Party) -> bool:
    """Whether two parties are the same ranks, or, where no rank is known, the same hosts."""
    if one.ranks or other.ranks:
        return one.ranks == other.ranks
    return bool(one.hosts) and one.hosts == other.hosts


def _party(findings: Iterable[Finding]) -> Party:
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


def _victims(present: dict[str, list[Match]], playbooks: Playbooks, culprits: Party) -> Party:
    suffering = [
        finding
        for symptom_id, matches in present.items()
        for binding in playbooks.symptoms[symptom_id].victims
        for finding in merged(matches, binding)
    ]
    party = _party(f for f in suffering if set(f.ranks) - set(culprits.ranks))
    blamed = {(place.file, place.line) for place in culprits.locations}
    return Party(
        ranks=[rank for rank in party.ranks if rank not in culprits.ranks],
        hosts=[],
        locations=[place for place in party.locations if (place.file, place.line) not in blamed],
    )


def _published_all(listed: list[_Candidate], playbooks: Playbooks) -> list[CandidateCause]:
    """The causes as they are told: of rivals only the first is established; a special case of it is no rival."""
    causes = [_published(candidate) for candidate in listed]
    kin = (
        {listed[0].cause.id, *playbooks.above(listed[0].cause.id), *playbooks.below(listed[0].cause.id)}
        if listed
        else ()
    )
    for cause in causes:
        if cause.level is Level.ESTABLISHED and cause.id not in kin:
            cause.level = Level.SUPPORTED
    return causes


def _published(candidate: _Candidate) -> CandidateCause:
    return CandidateCause(
        id=candidate.cause.id,
        title=candidate.cause.title,
        category=candidate.cause.category,
        probability=candidate.probability,
        level=candidate.level,
        culprits=candidate.culprits(),
        supports=[_says(match) for match in candidate.decides + candidate.supports],
        against=[_says(match) for match in candidate.contradicts],
    )


def _says(match: Match) -> str:
    return match.fill(match.clause.says) if match.clause.says else "; ".join(f.summary for f in match.findings)


def _filled(candidate: _Candidate, sentences: list[str]) -> list[str]:
    bindings = {name: merged(candidate.grounds, name) for match in candidate.grounds for name in match.bindings}
    return [fill(sentence, bindings) for sentence in sentences]


def _chain(leading: _Candidate, present: dict[str, list[Match]], playbooks: Playbooks, victims: Party) -> list[str]:
    """Who holds whom: what the leading cause rests on, then those who suffer; a finding may bring its own chain."""
    sentences = [_says(match) for match in leading.grounds]
    found = [f for ms in present.values() for m in ms for f in m.findings] + [
        f for m in leading.grounds for f in m.findings
    ]
    own = [sentence for finding in found for sentence in finding.attributes.get("chain", [])]
    waiting = [
        finding.summary
        for symptom_id, matches in present.items()
        for binding in playbooks.symptoms[symptom_id].victims
        for finding in merged(matches, binding)
        if set(finding.ranks) & set(victims.ranks)
    ]
    return list(dict.fromkeys([*sentences, *(own or waiting)]))


def _claims(matches: Iterable[Match]) -> list[Claim]:
    claims: dict[tuple[str, str], Claim] = {}
    for match in matches:
        for finding in match.findings:
            first = finding.evidence[0] if finding.evidence else None
            claims.setdefault(
                (finding.code, finding.summary),
                Claim(
                    finding=finding.code,
                    claim=finding.summary,
                    source=first.source if first else "",
                    line=first.line if first else None,
                    quote=first.quote if first else "",
                ),
            )
    return list(claims.values())


def _headline(
    verdict: Verdict,
    leading: _Candidate | None,
    culprits: Party,
    listed: list[_Candidate],
    well: list[Match],
    narrowed: Narrowed | None,
) -> str:
    if leading:
        who = rank_list(culprits.ranks).capitalize() if culprits.ranks else ", ".join(culprits.hosts)
        place = f" at {culprits.locations[0].short()}" if culprits.locations else ""
        return f"{who}{place}: {leading.cause.title}" if who else leading.cause.title
    if verdict is Verdict.HEALTHY:
        return _says(well[0])
    if narrowed:
        return f"Narrowed down, and not decided: {narrowed.title}"
    possible = f"the cause; one possibility: {listed[0].cause.title}" if listed else "a cause"
    return f"Not enough evidence to name {possible}"
