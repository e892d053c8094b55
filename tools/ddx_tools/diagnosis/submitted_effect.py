"""Explains why an answer stayed the same although something was submitted, in one sentence per finding."""

from __future__ import annotations

from collections.abc import Sequence

from ddx_tools.diagnosis.matching import meets
from ddx_tools.diagnosis.playbook import Cause, Clause, Playbooks, load_playbooks
from ddx_tools.diagnosis.ranking import matches
from ddx_tools.model.diagnosis import Diagnosis, Finding

_MOST_TOLD, _MOST_CAUSES = 3, 3


def why_unchanged(
    told: Sequence[Finding], seen: Sequence[Finding], now: Diagnosis, playbooks: Playbooks | None = None
) -> list[str]:
    """For each submitted finding, latest first, why the answer is the same with and without it.

    `seen`: the findings that were not submitted.
    """
    pages = playbooks or load_playbooks()
    return [_why(one, seen, now, pages) for one in [*reversed(told)][:_MOST_TOLD]]


def _why(one: Finding, seen: Sequence[Finding], now: Diagnosis, pages: Playbooks) -> str:
    name = str(one.attributes.get("fact") or one.code)
    if any(_says_the_same(other, one) for other in seen):
        return f"{name} was seen already"
    counted = [cause for cause in pages.causes.values() if _matches(_for(cause), one, [])]
    if counted:
        return f"{name} supports {_ids(counted)}, {_behind(counted, now)}"
    completed = [cause for cause in pages.causes.values() if _matches(_for(cause), one, seen)]
    if completed:
        return f"{name} supports {_ids(completed)}, {_behind(completed, now)}"
    against = [cause for cause in pages.causes.values() if _matches(cause.excludes, one, seen)]
    if against:
        return f"{name} contradicts only {_ids(against)}, which the answer did not rest on"
    partly = [cause for cause in pages.causes.values() if any(_is_part_of(clause, one) for clause in _for(cause))]
    if partly:
        return f"{name} supports {_ids(partly)} only together with findings that are missing"
    conditions = (each for cause in pages.causes.values() for clause in _for(cause) for each in clause.all)
    if any(one.code in condition.codes for condition in conditions):
        return f"{name} decides nothing with these attributes (read_playbook of a cause lists those that do)"
    return f"no cause rests on {name}"


def _for(cause: Cause) -> list[Clause]:
    return [*cause.decides, *cause.supports]


def _matches(clauses: Sequence[Clause], one: Finding, others: Sequence[Finding]) -> bool:
    """Whether a clause that rests on this finding holds."""
    found = matches(clauses, [*others, one])
    return any(finding is one for match in found for finding in match.findings)


def _is_part_of(clause: Clause, one: Finding) -> bool:
    return any(meets(one, condition) for condition in clause.all if not condition.absent)


def _says_the_same(seen: Finding, one: Finding) -> bool:
    if seen.code != one.code or seen.ranks != one.ranks:
        return False
    about = ("fact", "negated")
    return all(seen.attributes.get(name) == one.attributes.get(name) for name in about)


def _behind(causes: Sequence[Cause], now: Diagnosis) -> str:
    """A relative clause on how these causes rank in the answer."""
    if not now.causes:
        return "which needs more than submitted findings: these never decide alone"
    first = now.causes[0].id
    if any(cause.id == first for cause in causes):
        return "which is first even without it"
    if any(cause.id in {ruled_out.id for ruled_out in now.ruled_out} for cause in causes):
        return "which other evidence rules out"
    return f"which still ranks below {first}"


def _ids(causes: Sequence[Cause]) -> str:
    more = f" and {len(causes) - _MOST_CAUSES} more" if len(causes) > _MOST_CAUSES else ""
    return ", ".join(cause.id for cause in causes[:_MOST_CAUSES]) + more
