"""Prints tables of results on a terminal or as Markdown, for all evaluation commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class ScoreTable:
    """Rows of cells under a title. Figures are right-aligned, text left-aligned."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    text: int = 1
    """The number of leading text columns."""
    text_behind: int = 0
    """The number of trailing text columns."""

    def is_text(self, place: int) -> bool:
        """Whether the column at an index has text."""
        return place < self.text or place >= len(self.columns) - self.text_behind


def show(table: ScoreTable, out: Console) -> None:
    """Print a table on a console."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=table.title or None, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, padding=0)
    for place, column in enumerate(table.columns):
        drawn.add_column(column, justify="left" if table.is_text(place) else "right", no_wrap=place == 0)
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    out.print(drawn)


def markdown(table: ScoreTable) -> str:
    """The table as Markdown, with the title as a heading."""
    rule = "".join("---|" if table.is_text(place) else "---:|" for place in range(len(table.columns)))
    lines = [f"### {table.title}", ""] if table.title else []
    lines += [f"| {' | '.join(table.columns)} |", f"|{rule}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in table.rows)])
