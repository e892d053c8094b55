"""The table of systems, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from ddx_evals.results.summary import Summary
from ddx_evals.terminal import tables

if TYPE_CHECKING:
    from rich.console import Console

HEAD = (
    "system", "pass ± s.e.", "of all", "not easy", "pass^k", "score", "verdict", "cause", "culprits", "grounded",
    "Brier", "diagnosed wrong", "false alarms", "invented", "harmful", "calls", "kB", "s",
)  # fmt: skip
LEGEND = (
    "pass: cause and place right, and a key fact quoted. of all: failed runs count as failures. not easy: only cases "
    "that grep does not solve. culprits: exact 1, right host 0.6, right group 0.3, divided by the number blamed. "
    "Brier: 0 is best. calls, kB (tool output) and s (per try or, for a live job, to the right answer): not part of "
    "the score."
)


def markdown(rows: Sequence[Summary]) -> str:
    """Format the table as Markdown: a heading and a table for each split and view."""
    return "\n\n".join([*map(tables.markdown, _tables(rows)), LEGEND]) + "\n"


def show(rows: Sequence[Summary], out: Console) -> None:
    """Print the tables on a terminal."""
    for table in _tables(rows):
        tables.show(table, out)
    out.print(LEGEND, style="dim", markup=False)


def _tables(rows: Sequence[Summary]) -> Iterator[tables.ScoreTable]:
    for (split, view), group in groupby(rows, key=lambda row: (row.split, row.view)):
        listed = list(group)
        title = f"{split}, {view}: {listed[0].tries // listed[0].epochs} incidents"
        yield tables.ScoreTable(HEAD, [_cells(row) for row in listed], title)


def _cells(row: Summary) -> list[str]:
    of_tries = "" if row.scored == row.tries else f" ({row.scored}/{row.tries})"
    return [
        f"{row.name} (unsealed: not ranked)" if row.unsealed else row.name,
        _percent(row.passed, row.passed_error) + of_tries,
        _percent(row.passed_of_all),
        _percent(row.passed_not_easy),
        "–" if row.pass_hat_k is None else f"{_percent(row.pass_hat_k)} (k={row.epochs})",
        f"{row.score:.2f}",
        _percent(row.right_verdict),
        f"{row.cause:.2f}",
        _decimal(row.localisation),
        _percent(row.grounded),
        _decimal(row.brier),
        str(row.confidently_wrong),
        str(row.false_alarms),
        str(row.invented),
        str(row.harmful),
        f"{row.calls:.1f}",
        f"{row.output_bytes / 1000:.1f}",
        _seconds(row.seconds if row.right_after_s is None else row.right_after_s),
    ]


def _percent(share: float | None, error: float | None = None) -> str:
    if share is None:
        return "–"
    return f"{100 * share:.0f} %" if error is None else f"{100 * share:.0f} ± {100 * error:.0f} %"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def _decimal(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
