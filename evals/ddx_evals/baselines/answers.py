"""Diagnoses constructed in code."""

from __future__ import annotations

from collections.abc import Sequence

from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.model.diagnosis import CandidateCause, Claim, Diagnosis, Level, NextCheck, Party, Verdict

OTHER = "other"
"""The id for a cause that no playbook describes, as in `report_diagnosis`."""


def undecided(question: str = "", *, probe: str = "ask") -> Diagnosis:
    """An undecided diagnosis, with a next check if `question` is given."""
    check = NextCheck(probe=probe, question=question) if question else None
    return Diagnosis(verdict=Verdict.UNDECIDED, headline="It cannot be told from this.", next_check=check)


def healthy() -> Diagnosis:
    """A healthy diagnosis."""
    return Diagnosis(verdict=Verdict.HEALTHY, headline="Nothing is wrong.")


def diagnosed(cause: str, culprits: Party, claims: Sequence[Claim], *, probability: float, level: Level) -> Diagnosis:
    """A diagnosis of one cause with its culprits; `cause` is the id of a page, or OTHER."""
    page = load_playbooks().causes.get(cause)
    candidate = CandidateCause(
        id=cause,
        title=page.title if page else "",
        category=page.category if page else OTHER,
        probability=probability,
        level=level,
        culprits=culprits,
    )
    return Diagnosis(
        verdict=Verdict.DIAGNOSED,
        headline=candidate.title,
        causes=[candidate],
        culprits=culprits,
        evidence=list(claims),
    )
