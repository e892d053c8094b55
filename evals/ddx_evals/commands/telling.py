"""Prints and saves the results of the scoring commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ddx_server.render.output import console, error_console, print_json
from ddx_tools.model.errors import UsageError

if TYPE_CHECKING:
    from ddx_evals.results.run import Run


def tell(results: Run, out: Path | None, markdown: Path | None, *, as_json: bool, cases: bool = False) -> None:
    """Print results as a table, with the gain of each arm and the failed runs, and write the requested files.

    With `cases`, also print why each failing answer does not pass.
    """
    from ddx_evals.results.ablation import deltas, in_words
    from ddx_evals.results.leaderboard import markdown as as_markdown
    from ddx_evals.results.leaderboard import show
    from ddx_evals.results.shortfalls import failures, shortfalls
    from ddx_evals.results.summary import easy_cases, summaries

    rows = summaries(results.results)
    worth = [in_words(delta) for delta in deltas(results.results)]
    table = as_markdown(rows) + "".join(f"\n- {line}" for line in worth) + ("\n" if worth else "")
    for file, text in ((out, results.to_json()), (markdown, table)):
        if file:
            file.write_text(text, encoding="utf-8")
    if as_json:
        print_json(results.to_json())
        return
    show(rows, console())
    for line in worth:
        console().print(line, markup=False)
    if easy := len(easy_cases(results.results)):
        console().print(f"easy, since grep solves them: {easy} cases", style="dim")
    for line in [*(shortfalls(results.results) if cases else []), *failures(results.results)]:
        console().print(line, markup=False, soft_wrap=True)


def end_if_unscored(results: Run, *, as_json: bool) -> None:
    """Exit with the code for unusable input if nothing could be scored, so that it is not taken for a result."""
    if not any(each.score for each in results.results):
        if not as_json:
            error_console().print("no try could be scored")
        raise typer.Exit(UsageError.exit_code)
