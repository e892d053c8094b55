"""Chooses the question for an undecided answer: the reported fact that would best separate the open causes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ddx_tools.diagnosis.diagnose import diagnose
from ddx_tools.diagnosis.playbook import Clause, Playbooks
from ddx_tools.diagnosis.submitted import fact_finding
from ddx_tools.knowledge.facts import known_facts
from ddx_tools.model.diagnosis import Diagnosis, Finding, Missing

_LEAST = 0.02
"""The least share of probability that an answer must move between causes."""


def separating_fact(
    findings: Sequence[Finding], playbooks: Playbooks, missing: Sequence[Missing], asked: Iterable[str] = ()
) -> str | None:
    """The fact whose "yes" and "no" would separate the open causes best; None if no further fact does.

    Tries the facts on the pages of these causes or, if no cause is open, those about what can be wrong with a job.
    Facts in `asked` are left out.
    """
    said = diagnose(findings, playbooks, missing)
    left_out = {*asked, *(finding.attributes["fact"] for finding in findings if finding.code == "user.reported")}
    names = {name for clause in _clauses(said, playbooks) for name in _facts(clause)}
    if not said.causes:
        names = {name for name in names if known_facts()[name].kind == "wrong"}
    worth = {
        name: _distance(*(_judged(f"{name}={value}", findings, playbooks, missing) for value in ("yes", "no")))
        for name in known_facts()
        if name in names - left_out
    }
    # Of several that separate equally well, the first on the list.
    best = max(worth, key=lambda name: round(worth[name], 2), default=None)
    return best if best is not None and (worth[best] >= _LEAST or not said.causes) else None


def _clauses(said: Diagnosis, playbooks: Playbooks) -> Iterator[Clause]:
    for cause in said.causes:
        page = playbooks.causes[cause.id]
        yield from (*page.decides, *page.supports, *page.excludes)
    if not said.causes:
        for symptom in playbooks.symptoms.values():
            yield from symptom.present


def _facts(clause: Clause) -> Iterator[str]:
    for condition in clause.all:
        if condition.finding == "user.reported":
            names = condition.where["fact"]
            yield from names if isinstance(names, list) else [names]


def _judged(
    fact: str, findings: Sequence[Finding], playbooks: Playbooks, missing: Sequence[Missing]
) -> dict[str, float]:
    """The probability of each cause, given one more fact."""
    said = diagnose([*findings, fact_finding(fact)], playbooks, missing)
    return {cause.id: cause.probability for cause in said.causes}


def _distance(one: dict[str, float], other: dict[str, float]) -> float:
    """How much of the probability differs between two distributions: 0 (equal) to 1."""
    return sum(abs(one.get(cause, 0.0) - other.get(cause, 0.0)) for cause in one.keys() | other.keys()) / 2
