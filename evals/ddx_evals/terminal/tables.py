"""Tables of results, for a terminal and for a page: the one printer of all evaluation commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class ScoreTable:
    """Rows of cells under a title. Figures stand on the right of their column, text on the left."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    text: int = 1
    """How many columns hold text: these come first."""
    text_behind: int = 0
    """How many more hold text, at the end."""

    def is_text(self, place: int) -> bool:
        """Whether the column at a place holds text."""
        return place < self.text or place >= len(self.columns) - self.text_behind


def show(table: ScoreTable, out: Console) -> None:
    """Print a table."""
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
    """The same as lines of Markdown, the title as a heading."""
    rule = "".join("---|" if table.is_text(place) else "---:|" for place in range(len(table.columns)))
    lines = [f"### {table.title}", ""] if table.title else []
    lines += [f"| {' | '.join(table.columns)} |", f"|{rule}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in table.rows)])
