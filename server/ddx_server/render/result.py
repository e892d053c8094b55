"""The result of one probe, printed for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ddx_server.render.mesh import render_grid
from ddx_server.render.safe_text import safe
from ddx_tools.diagnosis.checks import command_line
from ddx_tools.model.diagnosis import Evidence, Finding, ProbeResult, Severity, rank_list

_STYLES = {Severity.INFO: "dim", Severity.NOTICE: "", Severity.WARNING: "yellow", Severity.FAILURE: "red"}
_CELL_LIMIT = 120
_LONG = 14
_NAME_SHARE = 5
"""The first column, which names the row, is folded only if it is wider than a fifth of the table."""
_ROOMY = 110
"""On a narrower terminal, a table may not fit without broken headings."""
_SHOWN_FINDINGS, _SHOWN_EVIDENCE, _SHOWN_PROBLEMS = 12, 3, 12


def render_result(result: ProbeResult, console: Console) -> None:
    """Print a probe's findings, its rows, what it could not read, and what it looked at."""
    if not result.findings and not result.table:
        console.print(safe(result.summary or "nothing found"))
    for line in _findings(result):
        console.print(line)
    if result.table:
        if result.findings:
            console.print()
        console.print(_rows_of(result, console.width))
    for item in result.truncated:
        console.print(safe(f"{item.shown} of {item.total} rows shown; {item.how}", "dim"))
    for problem in result.problems[:_SHOWN_PROBLEMS]:
        console.print(safe(f"! {problem}", "yellow"))
    if len(result.problems) > _SHOWN_PROBLEMS:
        console.print(safe(f"! … and {len(result.problems) - _SHOWN_PROBLEMS} more (for all: --json)", "yellow"))
    for following in result.next:
        console.print(safe(f"next: {command_line(following.probe, following.args)}", "dim"), soft_wrap=True)
        console.print(safe(f"      {following.why}", "dim"))
    if result.searched:
        console.print(safe("looked at: " + "; ".join(result.searched), "dim"))


def _rows_of(result: ProbeResult, width: int) -> RenderableType:
    """A mesh as a grid, everything else as a table."""
    return render_grid(result, width) if result.probe == "mesh" else _table(result.table, width)


def _findings(result: ProbeResult) -> Iterator[RenderableType]:
    told: set[str] = set()
    for finding in result.findings[:_SHOWN_FINDINGS]:
        bullet = Text("• ", _STYLES[finding.severity])
        yield bullet + safe(finding.summary) + safe(f"  [{finding.code}]", "dim")
        for place in finding.locations[:3]:
            if place.source:
                yield safe(f"    {place.short()}    {place.source}", "cyan")
        for evidence in _decisive(finding):
            if evidence.quote not in told:
                told.add(evidence.quote)
                where = result.origins.get(evidence.source, evidence.source)
                line = safe(evidence.quote[:200], "cyan") + safe(f"    {where}", "dim", limit=300)
                yield Padding(line, (0, 0, 0, 4), expand=False)
    if len(result.findings) > _SHOWN_FINDINGS:
        yield safe(f"… and {len(result.findings) - _SHOWN_FINDINGS} more findings (for all: --json)", "dim")


def _decisive(finding: Finding) -> list[Evidence]:
    """The quotes that a failure rests on: the first ones, and the last, which shows the majority to compare with."""
    if finding.severity is not Severity.FAILURE or any(place.source for place in finding.locations):
        return []
    quoted = [evidence for evidence in finding.evidence if evidence.quote]
    return quoted if len(quoted) <= _SHOWN_EVIDENCE else [*quoted[: _SHOWN_EVIDENCE - 1], quoted[-1]]


def _table(rows: list[dict[str, Any]], width: int) -> RenderableType:
    """Rows as a table, without empty columns. A long value shared by nearly all rows is printed once, below."""
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    columns = [name for name in rows[0] if any(row[name] not in (None, "", "{}") for row in rows)]
    shared = {name: common for name in columns if (common := _common(rows, name))}
    own = [name for name in columns if name not in shared]
    if sum(_least_width(rows, name) for name in own) > width < _ROOMY:
        return Group(*(_record(row, own) for row in rows), *_below(shared))
    for number, name in enumerate(own):
        longest = max(len(_cell(name, row[name])) for row in rows)
        whole = number == 0 and longest <= width // _NAME_SHARE
        drawn.add_column(name, overflow="fold", no_wrap=whole, min_width=len(name))
    for row in rows:
        drawn.add_row(*(safe(_cell(name, row[name]), limit=_CELL_LIMIT) for name in own))
    return Group(drawn, *_below(shared))


def _below(shared: dict[str, str]) -> list[Text]:
    return [safe(f"{name}: {value}", "dim") for name, value in shared.items()]


def _least_width(rows: list[dict[str, Any]], name: str) -> int:
    """The least width of a column that breaks neither its heading nor a word of usual length."""
    words = (word for row in rows for word in _cell(name, row[name]).split())
    return 2 + max(len(name), *(min(len(word), _LONG) for word in words))


def _record(row: dict[str, Any], names: list[str]) -> Text:
    """A row as `name value` pairs, for a terminal too narrow for a table."""
    first, *others = ((name, _cell(name, row[name])) for name in names)
    line = safe(first[1] or "-", "bold", limit=_CELL_LIMIT)
    for name, value in others:
        if value:
            line += safe(f"  {name} ", "dim") + safe(value, limit=_CELL_LIMIT)
    return line


def _common(rows: list[dict[str, Any]], name: str) -> str | None:
    """The long value shared by nearly all rows of a column, if any (a launcher's command differs from its ranks')."""
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
