"""The result of one probe for a person."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ddx_server.render.safe_text import safe
from ddx_tools.model import ProbeResult, Severity

_STYLES = {Severity.INFO: "dim", Severity.NOTICE: "", Severity.WARNING: "yellow", Severity.FAILURE: "red"}


def render_result(result: ProbeResult, console: Console) -> None:
    """Print a probe's findings, what it looked at, and what it could not read."""
    if not result.findings:
        console.print(safe(result.summary or "nothing found"))
    for finding in result.findings:
        console.print(
            Text("• ", _STYLES[finding.severity]) + safe(finding.summary) + safe(f"  [{finding.code}]", "dim")
        )
        for place in finding.locations[:3]:
            if place.source:
                console.print(safe(f"    {place.short()}    {place.source}", "cyan"))
    for problem in result.problems:
        console.print(safe(f"! {problem}", "yellow"))
    for item in result.truncated:
        console.print(safe(f"{item.shown} of {item.total} shown; {item.how}", "dim"))
    for following in result.next:
        console.print(safe(f"next: ddx {following.probe.replace('_', '-')} — {following.why}", "dim"))
    if result.searched:
        console.print(safe("looked at: " + "; ".join(result.searched), "dim"))
