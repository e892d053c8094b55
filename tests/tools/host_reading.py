"""Reading texts of machines as the probe `host` does: from files to findings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddx_tools.analysis.host_facts.host_fact import seen
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.probes.host.findings import findings_of_facts
from ddx_tools.probes.host.probe import HostArgs
from ddx_tools.probes.host.text_rows import fact_rows
from ddx_tools.probes.registry import probe  # which registers what recognises a file
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.raw import Raw

HOST_TEXTS = Path(__file__).parents[1] / "fixtures" / "host"
RECORDED = HOST_TEXTS / "recorded"
CONSTRUCTED = HOST_TEXTS / "constructed"


def captured(*paths: Path) -> Raw:
    return probe("host").capture(LocalHost("unknown"), HostArgs(target=[str(path) for path in paths]))


def rows_of(*paths: Path) -> list[dict[str, Any]]:
    return dict(probe("host").parse(captured(*paths))).get("host_facts", [])


def findings_of(*paths: Path) -> list[Finding]:
    return findings_of_facts([seen(row) for row in rows_of(*paths)])


def findings_in(*texts: str) -> list[Finding]:
    """Findings of texts that somebody pasted into files without telling names."""
    named = ((f"paste{number}.txt", text.encode()) for number, text in enumerate(texts))
    return findings_of_facts([seen(row) for name, data in named for row in fact_rows(data, name, name)])


def facts_in(text: str, topic: str) -> list[dict[str, Any]]:
    return [row for row in fact_rows(text.encode(), "paste.txt", "paste.txt") if row["topic"] == topic]


def one(findings: Sequence[Finding], code: str) -> Finding:
    found = [finding for finding in findings if finding.code == code]
    assert len(found) == 1, [finding.summary for finding in found]
    return found[0]


def codes(findings: Sequence[Finding], least: Severity = Severity.NOTICE) -> set[str]:
    """Codes of the findings of at least this severity."""
    order = list(Severity)
    return {finding.code for finding in findings if order.index(finding.severity) >= order.index(least)}
