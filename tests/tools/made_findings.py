"""Findings made for tests of the shipped playbooks, as probes raise them."""

from __future__ import annotations

from typing import Any

from ddx_tools.diagnosis.diagnose import diagnose
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.knowledge.finding_codes import finding_codes
from ddx_tools.model.diagnosis import Diagnosis, Finding, Severity


def seen(code: str, *ranks: int, host: str = "", severity: str = "failure", **attributes: Any) -> Finding:
    assert code in finding_codes()
    return Finding(
        code=code,
        severity=Severity(severity),
        ranks=list(ranks),
        hosts=[host] if host else [],
        summary=f"{code} of {list(ranks)} {host}.",
        attributes=attributes,
    )


def told(fact: str, *, negated: bool = False) -> Finding:
    return seen("user.reported", severity="info", fact=fact, negated=negated, basis="user")


def raised(*ranks: int, tells: list[str] | None = None, **attributes: Any) -> Finding:
    """An exception that ended ranks. `tells`: the findings that its own words raise."""
    facts: dict[str, Any] = {
        "exception": "RuntimeError",
        "message": "it says so",
        "independent": True,
        "tells": tells or [],
    }
    return seen("rank.raised", *ranks, **(facts | attributes))


def timeout(*ranks: int, **attributes: Any) -> Finding:
    facts: dict[str, Any] = {"operation": "all_reduce", "timeout_ms": 600_000, "elapsed_ms": 600_020}
    return seen("collective.timeout_reported", *ranks, severity="warning", **(facts | attributes))


def judged(*findings: Finding) -> Diagnosis:
    return diagnose(findings, load_playbooks())


def first(diagnosis: Diagnosis) -> str | None:
    return diagnosis.causes[0].id if diagnosis.causes else None
