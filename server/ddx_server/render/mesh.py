"""A mesh drawn as a grid: one line of ranks per position in the outer dimensions."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ddx_server.render.safe_text import safe
from ddx_tools.model.diagnosis import ProbeResult

_GAP = 2


def render_grid(result: ProbeResult, width: int) -> RenderableType:
    """Draw the rows of the `mesh` probe as a grid, cut to `width`; ranks that were asked about stand out."""
    rows = result.table
    asked = _ranks_of(result, "mesh.rank")
    together = _ranks_of(result, "mesh.group_axis")
    longest = max(len(row["ranks"]) for row in rows)
    digits = max(len(str(rank)) for row in rows for rank in row["ranks"])
    heads = [name for name in ("mesh", "at", "hosts") if any(row[name] for row in rows)]
    taken = sum(max(len(name), *(len(str(row[name] or "")) for row in rows)) + _GAP for name in heads)
    across = _across(longest, width - taken, digits, max(len(row["ranks"]) + (row["more"] or 0) for row in rows))
    drawn = Table(box=None, pad_edge=False, header_style="dim", padding=(0, _GAP, 0, 0))
    for name in heads:
        drawn.add_column("host" if name == "hosts" else name, no_wrap=True, style="dim")
    along = rows[0]["along"] or ""
    for place in range(across):
        drawn.add_column(along if place == 0 else "", justify="right", no_wrap=True, min_width=digits)
    drawn.add_column("")
    for row in rows:
        cells = [_cell(rank, asked, together) for rank in row["ranks"][:across]]
        beyond = len(row["ranks"]) - len(cells) + (row["more"] or 0)
        cells += [Text("")] * (across - len(cells))
        rest = safe(f"… {beyond} more", "dim") if beyond else Text("")
        drawn.add_row(*(safe(str(row[name] or "")) for name in heads), *cells, rest)
    return drawn


def _across(longest: int, room: int, digits: int, whole: int) -> int:
    """The number of ranks that fit side by side; if some do not, leave room for a note that says so."""
    rest = len(f"… {whole} more") + _GAP
    if longest == whole and whole * (digits + _GAP) <= room:
        return longest
    return max(1, min(longest, (room - rest) // (digits + _GAP)))


def _cell(rank: int, asked: set[int], together: set[int]) -> Text:
    return Text(str(rank), "bold reverse" if rank in asked else "bold" if rank in together else "")


def _ranks_of(result: ProbeResult, code: str) -> set[int]:
    found: Any = (rank for finding in result.findings if finding.code == code for rank in finding.ranks)
    return set(found)
