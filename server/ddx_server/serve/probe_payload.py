"""Fits a probe's result into the budget: findings first, then what to run next, then the rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ddx_server.serve.budget import Payload, Rest, bounded, quoted, some

if TYPE_CHECKING:
    from ddx_tools.model.diagnosis import Finding, NextProbe, ProbeResult

_MOST_FACTS_CHARS = 240


def probe_payload(found: ProbeResult, target: Sequence[str], origin: Callable[[str], str]) -> dict[str, Any]:
    """A probe's result as far as it fits. `origin` says where a reader finds the source of a piece of evidence.

    Findings quote the job, so their sentences are marked untrusted, like the rows.
    """
    problems = [bounded(problem, 260) for problem in found.problems]
    searched = [bounded(line, 160) for line in found.searched]
    cut_before = sum(cut.total - cut.shown for cut in found.truncated)
    payload = Payload(
        findings=Rest(len(found.findings), "name fewer ranks or files, or query_evidence"),
        untrusted_rows=Rest(len(found.table) + cut_before, "query_evidence on an incident"),
        untrusted_problems=Rest(len(problems), "name fewer ranks or files"),
        untrusted_searched=Rest(len(searched), "name fewer ranks or files"),
    )
    payload.put("status", found.status.value)
    payload.put("untrusted_summary", bounded(found.summary, 200))
    payload.put("next", [_next(one, target) for one in found.next[:1]])
    payload.extend("untrusted_problems", problems[:2])
    payload.extend("findings", [_finding(finding, origin) for finding in found.findings])
    payload.extend("untrusted_searched", searched[:4])
    payload.extend("untrusted_rows", [_row(row) for row in found.table])
    payload.extend("untrusted_problems", problems[2:])
    payload.extend("untrusted_searched", searched[4:])
    return payload.finished()


def _next(following: NextProbe, target: Sequence[str]) -> dict[str, Any]:
    """The next call, ready to be made; it has the same target unless it names its own."""
    about = {"target": list(target)} if target else {}
    args = {name: _plain(value) for name, value in following.args.items()}
    return {"tool": following.probe, "args": about | args, "why": bounded(following.why)}


def _finding(finding: Finding, origin: Callable[[str], str]) -> dict[str, Any]:
    from ddx_tools.model.rank_spans import rank_spans

    told = {
        "code": finding.code,
        "severity": finding.severity.value,
        "ranks": rank_spans(finding.ranks) if finding.ranks else "",
        "hosts": some(finding.hosts, 4),
        "group": bounded(finding.group or "", 80),
        "untrusted_summary": bounded(finding.summary),
        "at": some([place.short() for place in finding.locations], 3),
        "untrusted_facts": _facts(finding.attributes),
        "evidence": [
            {
                "source": bounded(origin(one.source), 160),
                **({"line": one.line} if one.line else {}),
                "untrusted_quote": quoted(one.quote),
            }
            for one in finding.evidence[:1]
        ],
    }
    return {name: value for name, value in told.items() if value}


def _facts(attributes: dict[str, Any]) -> dict[str, Any]:
    """The plain values among a finding's attributes; its summary and evidence have the lists and texts."""
    facts: dict[str, Any] = {}
    room = _MOST_FACTS_CHARS
    for name, value in attributes.items():
        if value is False or value == "" or not isinstance(value, str | int | float):
            continue
        plain = _plain(value)
        room -= len(name) + len(str(plain)) + 6
        if room < 0:
            break
        facts[name] = plain
    return facts


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """A row without empty values, with ranks as ranges."""
    return {name: _plain(value) for name, value in row.items() if value not in (None, "", "{}", "[]", [])}


def _plain(value: Any) -> Any:
    """A value of a row or an argument, bounded."""
    from ddx_tools.model.rank_spans import rank_spans

    if isinstance(value, str):
        return bounded(value, 160)
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return rank_spans(value)
    return bounded(str(value), 160)
