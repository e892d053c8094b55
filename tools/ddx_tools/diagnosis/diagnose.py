"""The differential diagnosis: judges findings by the playbooks.

A clause that holds adds its strength as log-odds; missing evidence supports causes that no page describes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ddx_tools.diagnosis.checks import is_trouble, next_check
from ddx_tools.diagnosis.matching import Match, fill, merged, title_of
from ddx_tools.diagnosis.playbook import Playbooks, Strength
from ddx_tools.diagnosis.ranking import (
    WEIGHTS,
    Candidate,
    Circumstances,
    hosts_of_job,
    is_untied_warning,
    judge,
    matches,
    party,
    rank,
    something_else,
)
from ddx_tools.knowledge.facts import known_facts
from ddx_tools.model.diagnosis import (
    CandidateCause,
    Claim,
    Diagnosis,
    Finding,
    Level,
    Missing,
    Narrowed,
    Party,
    RuledOut,
    Verdict,
    distinct,
    rank_list,
)
from ddx_tools.model.wording import capital

_DIAGNOSED_FROM = 0.58  # below this a named cause would be a guess
_SAFE_FROM = 0.6  # a node with less is not an answer
_LISTED_FROM = 0.02
NO_SYMPTOM = "No known symptom was recognised in this material; read its case file"


def diagnose(findings: Sequence[Finding], playbooks: Playbooks, missing: Sequence[Missing] = ()) -> Diagnosis:
    """Judge findings by the playbooks. `missing`: what the probes could not examine; it lowers every probability."""
    present = {s.id: m for s in playbooks.symptoms.values() if (m := _telling(matches(s.present, findings), findings))}
    judged = [judge(cause, playbooks, findings) for cause in playbooks.causes.values()]
    all_is_well = [m for symptom in playbooks.symptoms.values() for m in matches(symptom.absent, findings)]
    for candidate in judged if not all_is_well else ():
        shown = _telling(candidate.shown, findings)
        if shown and not set(candidate.cause.symptoms) & set(present):
            present[candidate.cause.symptoms[0]] = shown
    candidates = [candidate for candidate in judged if set(candidate.cause.symptoms) & set(present)]
    stopped = {symptom: m for symptom, m in present.items() if not playbooks.symptoms[symptom].goes_on}
    suffering = frozenset(_victims(stopped, playbooks, Party()).ranks)
    rank(candidates, Circumstances(playbooks, findings, frozenset(stopped), suffering, len(missing)))
    listed = [c for c in candidates if (c.decides or c.supports) and not c.is_node and c.probability >= _LISTED_FROM]
    verdict, well = _verdict(listed, present, playbooks, findings)
    leading = listed[0] if listed and verdict is Verdict.DIAGNOSED else None
    culprits = _placed(leading, findings) if leading else Party()
    victims = _victims(present, playbooks, culprits)
    narrowed = _narrowed(leading, candidates, playbooks, len(missing)) if present else None
    trouble = playbooks.symptoms[next(iter(present))].title if present else None
    if trouble is None:
        ends = (finding.summary.partition(";")[0] for finding in findings if finding.code == "job.ended")
        trouble = next(ends, "" if any(map(is_trouble, findings)) else None)
    return Diagnosis(
        verdict=verdict,
        headline=_headline(verdict, leading, culprits, listed, well, narrowed, trouble),
        narrowed_to=narrowed,
        causes=[] if verdict is Verdict.HEALTHY else _published_all(listed, playbooks),
        culprits=culprits,
        victims=victims,
        chain=_chain(leading, present, playbooks, victims) if leading else [],
        evidence=_claims(
            leading.grounds + leading.supports if leading else [m for ms in present.values() for m in ms] + well
        ),
        ruled_out=[RuledOut(id=c.cause.id, why=_says(c.excluded[0])) for c in candidates if c.excluded],
        fix=_filled(leading, leading.cause.fix) if leading else [],
        verify=_filled(leading, leading.cause.verify) if leading else [],
        next_check=None
        if verdict is Verdict.HEALTHY
        else next_check(
            leading.cause if leading else None,
            playbooks.causes[narrowed.id] if narrowed else None,
            [c.cause for c in listed],
            present,
            playbooks,
            findings,
        ),
        missing=list(missing),
    )


def _telling(found: list[Match], findings: Sequence[Finding]) -> list[Match]:
    """The matches that show trouble of the job: while it makes steps, not the warnings that nothing ties to it."""
    if not found or not any(finding.code == "job.progress" for finding in findings):
        return found
    hosts = hosts_of_job(findings)
    return [match for match in found if not is_untied_warning(match, hosts)]


def _narrowed(
    leading: Candidate | None, candidates: list[Candidate], playbooks: Playbooks, missing: int
) -> Narrowed | None:
    """The deepest node that holds most of the weight: only which of its special cases applies is open."""
    if leading:
        return Narrowed(id=leading.cause.id, title=leading.cause.title, mass=leading.probability)
    # Each cause counts what supports it but not its special cases; a node's own share covers everything below it.
    shares: dict[str, float] = {}
    for candidate in sorted(candidates, key=lambda c: -len(playbooks.above(c.cause.id))):
        if candidate.decides or candidate.supports:
            carried = sum(shares.get(cause, 0.0) for cause in playbooks.below(candidate.cause.id))
            shares[candidate.cause.id] = max(0.0, math.exp(candidate.score) - carried)
    total = something_else(missing) + sum(shares.values())
    found = []
    for node in playbooks.causes.values():
        if below := playbooks.below(node.id):
            mass = sum(shares.get(cause, 0.0) for cause in below | {node.id}) / total
            found.append((mass >= _SAFE_FROM, len(playbooks.above(node.id)), mass, node.id))
    safe, _, mass, best = max(found, default=(False, 0, 0.0, ""))
    return Narrowed(id=best, title=playbooks.causes[best].title, mass=round(mass, 3)) if safe else None


def _verdict(
    listed: list[Candidate],
    present: dict[str, list[Match]],
    playbooks: Playbooks,
    findings: Sequence[Finding],
) -> tuple[Verdict, list[Match]]:
    """The verdict, and the matches that show that a healthy job is healthy.

    `listed`: the open causes, most likely first; `present`: the symptoms that were seen, with their evidence. Healthy
    needs machine evidence and no symptom. Diagnosed needs an established first cause whose rivals, other than its own
    more general and more special forms, leave it at least `_DIAGNOSED_FROM` of the probability.
    """
    if not present:
        well = [m for symptom in playbooks.symptoms.values() for m in matches(symptom.absent, findings)]
        return (Verdict.HEALTHY, well) if well and not _told_of_a_fault(findings) else (Verdict.UNDECIDED, [])
    if listed and listed[0].level is Level.ESTABLISHED:
        # A cause and a special case of it that blame the same ranks count as one answer; rivals do not.
        blamed, first = listed[0].culprits(), listed[0].cause.id
        kin = playbooks.above(first) | playbooks.below(first)
        others = (c for c in listed[1:] if c.cause.id in kin and c.level is Level.ESTABLISHED)
        agreed = [listed[0], *(c for c in others if _same(c.culprits(), blamed))]
        strongly = max(c.decided for c in agreed) >= WEIGHTS[Strength.STRONG]
        # That something ended, in an unknown way, is not a cause that one could act on.
        is_general = listed[0].cause.residual and bool(playbooks.below(first)) and not strongly
        if not is_general and sum(c.probability for c in agreed) >= _DIAGNOSED_FROM:
            return Verdict.DIAGNOSED, []
    return Verdict.UNDECIDED, []


def _told_of_a_fault(findings: Sequence[Finding]) -> bool:
    """Whether a reported fact says that something is wrong."""
    told = [one.attributes for one in findings if one.code == "user.reported"]
    return any(known_facts()[one["fact"]].tells_of_a_fault(negated=one["negated"]) for one in told)


def _placed(leading: Candidate, findings: Sequence[Finding]) -> Party:
    """The culprits of a cause, with places from its weaker grounds for the same ranks.

    If there are none, with the places from the ranks' stacks.
    """
    culprits = leading.culprits()
    blaming = [f for name in leading.cause.culprits for f in merged(leading.decides, name)]
    same = party([f for f in blaming if f.ranks and set(f.ranks) <= set(culprits.ranks)])
    culprits.locations = distinct([*culprits.locations, *same.locations])
    if culprits.locations or not culprits.ranks:
        return culprits
    theirs = [f for f in findings if _in_stacks(f) and f.ranks and set(f.ranks) <= set(culprits.ranks)]
    return culprits.model_copy(update={"locations": party(theirs).locations})


def _in_stacks(finding: Finding) -> bool:
    return finding.attributes.get("basis") == "stacks"


def _same(one: Party, other: Party) -> bool:
    """Whether both are the same ranks or, if no rank is known, the same hosts."""
    if one.ranks or other.ranks:
        return one.ranks == other.ranks
    return bool(one.hosts) and one.hosts == other.hosts


def _victims(present: dict[str, list[Match]], playbooks: Playbooks, culprits: Party) -> Party:
    suffering = [
        finding
        for symptom_id, matches in present.items()
        for binding in playbooks.symptoms[symptom_id].victims
        for finding in merged(matches, binding)
    ]
    waiting = party(f for f in suffering if set(f.ranks) - set(culprits.ranks))
    blamed = {(place.file, place.line) for place in culprits.locations}
    return Party(
        ranks=[rank for rank in waiting.ranks if rank not in culprits.ranks],
        hosts=[],
        locations=[place for place in waiting.locations if (place.file, place.line) not in blamed],
    )


def _published_all(listed: list[Candidate], playbooks: Playbooks) -> list[CandidateCause]:
    """The causes as published: of rivals, only the first is established; a special case of it is not a rival."""
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


def _published(candidate: Candidate) -> CandidateCause:
    culprits = candidate.culprits()
    return CandidateCause(
        id=candidate.cause.id,
        title=title_of(candidate.cause.title, culprits.ranks),
        category=candidate.cause.category,
        probability=candidate.probability,
        level=candidate.level,
        culprits=culprits,
        supports=[_says(match) for match in candidate.decides + candidate.supports],
    )


def _says(match: Match) -> str:
    return match.fill(match.clause.says) if match.clause.says else match.summary


def _filled(candidate: Candidate, sentences: list[str]) -> list[str]:
    bindings = {name: merged(candidate.grounds, name) for match in candidate.grounds for name in match.bindings}
    return [fill(sentence, bindings) for sentence in sentences]


def _chain(leading: Candidate, present: dict[str, list[Match]], playbooks: Playbooks, victims: Party) -> list[str]:
    """The chain of waits: what the leading cause rests on, then the victims; a finding may bring its own chain."""
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
    leading: Candidate | None,
    culprits: Party,
    listed: list[Candidate],
    well: list[Match],
    narrowed: Narrowed | None,
    trouble: str | None,
) -> str:
    """`trouble`: the title of the symptom, empty if something went wrong otherwise, None if nothing did."""
    if leading:
        who = rank_list(culprits.ranks).capitalize() if culprits.ranks else ", ".join(culprits.hosts)
        place = f" at {culprits.locations[0].short()}" if culprits.locations else ""
        title = title_of(leading.cause.title, culprits.ranks)
        return f"{who}{place}: {title}" if who else capital(title)
    if verdict is Verdict.HEALTHY:
        return _says(well[0])
    if narrowed:
        return f"Narrowed down, not decided: {narrowed.title}"
    if trouble is None and not listed:
        return NO_SYMPTOM
    possible = f"the cause; one possibility: {listed[0].cause.title}" if listed else "a cause"
    return (
        f"{trouble}; not enough evidence to name {possible}" if trouble else f"Not enough evidence to name {possible}"
    )
