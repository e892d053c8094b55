"""Reads rows of `network_checks` for the analyses."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Evidence, Finding, Severity

_MOST_EVIDENCE = 8
BASIS = "network"


@dataclass(frozen=True)
class NetworkCheck:
    """One check of the network, with its outcome."""

    host: str
    peer: str
    address: str | None
    port: int | None
    what: str
    outcome: str
    facts: dict[str, Any]
    evidence: Evidence

    @property
    def peer_text(self) -> str:
        """The peer as shown to a person: `node-2 (10.0.0.2)`."""
        return self.peer if self.address in (None, self.peer) else f"{self.peer} ({self.address})"


def read_checks(store: Store) -> list[NetworkCheck]:
    """Return all checks, in the order they were made."""
    names = ("host", "address", "port", "what", "outcome")
    return [
        NetworkCheck(
            **{name: row[name] for name in names},
            peer=row["peer"] or "",
            facts=json.loads(row["facts"]),
            evidence=Evidence(source=row["source"], line=row["source_line"], quote=row["text"] or ""),
        )
        for row in store.query("SELECT * FROM network_checks ORDER BY rowid")
    ]


def finding(code: str, severity: Severity, checks: Iterable[NetworkCheck], summary: str, **attributes: Any) -> Finding:
    """Build a finding with these checks as evidence; attributes that are None are left out."""
    checks = list(checks)
    return Finding(
        code=code,
        severity=severity,
        hosts=sorted({check.host for check in checks}),
        summary=summary,
        evidence=[check.evidence for check in checks[:_MOST_EVIDENCE]],
        attributes={**{name: value for name, value in attributes.items() if value is not None}, "basis": BASIS},
    )
