"""What was reported, once for each fact; and its contrary where somebody says that, too."""

from __future__ import annotations

from ddx_tools.model import Evidence, Finding, Severity
from ddx_tools.parsers.notes.report_vocabulary import Fact, vocabulary
from ddx_tools.store import Store

_MOST_EVIDENCE = 5


def note_findings(store: Store) -> list[Finding]:
    """One finding for each fact, and one for its contrary where somebody says that, too."""
    rows = store.query(
        "SELECT fact, negated, quote, source, source_line FROM user_reports ORDER BY source, source_line"
    )
    if not rows:
        return []
    known = vocabulary()
    by_fact: dict[tuple[str, bool], list[dict[str, object]]] = {}
    for row in rows:
        by_fact.setdefault((str(row["fact"]), bool(row["negated"])), []).append(row)
    return [_finding(known[fact], negated, said) for (fact, negated), said in by_fact.items() if fact in known]


def _finding(fact: Fact, negated: bool, said: list[dict[str, object]]) -> Finding:
    evidence = [
        Evidence(source=str(row["source"]), line=int(str(row["source_line"])), quote=str(row["quote"])) for row in said
    ]
    return Finding(
        code="user.reported",
        severity=Severity.INFO,
        summary=f"Reported by the user: {fact.contrary if negated else fact.says}",
        evidence=evidence[:_MOST_EVIDENCE],
        attributes={"fact": fact.id, "quote": evidence[0].quote, "negated": negated, "basis": "user"},
    )
