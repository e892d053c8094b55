"""The result of one probe for a person."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ddx_server.render.safe_text import safe
from ddx_tools.model import ProbeResult, Severity, rank_list

_STYLES = {Severity.INFO: "dim", Severity.NOTICE: "", Severity.WARNING: "yellow", Severity.FAILURE: "red"}
_CELL_LIMIT = 80
_LONG = 14


def render_result(result: ProbeResult, console: Console) -> None:
    """Print a probe's rows and findings, what it looked at, and what it could not read."""
    if result.table:
        console.print(_table(result.table))
    if not result.findings and not result.table:
        console.print(safe(result.summary or "nothing found"))
    for finding in result.findings:
        bullet = Text("• ", _STYLES[finding.severity])
        console.print(bullet + safe(finding.summary) + safe(f"  [{finding.code}]", "dim"))
        for place in finding.locations[:3]:
            if place.source:
                console.print(safe(f"    {place.short()}    {place.source}", "cyan"))
    for problem in result.problems:
        console.print(safe(f"! {problem}", "yellow"))
    for item in result.truncated:
        console.print(safe(f"{item.shown} of {item.total} rows shown; {item.how}", "dim"))
    for following in result.next:
        console.print(safe(f"next: ddx {following.probe.replace('_', '-')} — {following.why}", "dim"))
    if result.searched:
        console.print(safe("looked at: " + "; ".join(result.searched), "dim"))


def _table(rows: list[dict[str, Any]]) -> RenderableType:
    """Rows as a table. What is long and the same in nearly all rows stands once, below; empty columns are left out."""
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    columns = [name for name in rows[0] if any(row[name] not in (None, "", "{}") for row in rows)]
    shared = {name: common for name in columns if (common := _common(rows, name))}
    for name in columns:
        if name not in shared:
            drawn.add_column(name, overflow="fold")
    for row in rows:
        drawn.add_row(*(safe(_cell(n, row[n]), limit=_CELL_LIMIT) for n in columns if n not in shared))
    return Group(drawn, *(safe(f"{name}: {value}", "dim") for name, value in shared.items()))


def _common(rows: list[dict[str, Any]], name: str) -> str | None:
    """The one long value of a column, if nearly all rows have it (a launcher's command differs from its ranks')."""
    value, times = Counter(str(row[name]) for row in rows).most_common(1)[0]
    return value if len(rows) > 2 and times >= len(rows) - 1 and len(value) > _LONG else None


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name in ("ranks", "recorded_by", "members") and isinstance(value, list):
        return rank_list([rank for rank in value if rank is not None]).split(" ", 1)[-1]
    if name in ("file", "place", "source"):
        return str(value).rsplit("/", 1)[-1]
    return f"{value:g}" if isinstance(value, float) else str(value)
