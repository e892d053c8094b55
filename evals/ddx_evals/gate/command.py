"""`ddx evals scores gate`: judges incidents and shows the differences from the accepted outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ddx_evals.terminal.options import INCIDENTS
from ddx_server.render.output import JSON_OPTION, print_json, progress_line
from ddx_tools.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddx_evals.gate.judgement import CaseOutcome
    from ddx_evals.gate.table import Change


def gate(
    names: INCIDENTS = None,
    first: Annotated[
        bool, typer.Option("--first", help="Stop at the first incident that is judged differently.")
    ] = False,
    accept: Annotated[
        bool,
        typer.Option("--accept", help="Write won and new cases to expected.tsv."),
    ] = False,
    lost: Annotated[bool, typer.Option("--lost", help="With --accept: also write lost cases.")] = False,
    as_json: JSON_OPTION = False,
) -> None:
    """Judge incidents in all their views and show the differences from the accepted answers in expected.tsv.

    A case is lost if its answer is worse than the accepted one, won if better, and other if the truth cannot say which
    is better. A doubt is an answer that needs verification, such as a quote that its source does not show. The exit
    code is 0 if nothing was lost or changed and there is no doubt, or if everything was accepted.

    A quick check after changing one page: ddx evals scores gate --first dev public
    """
    from ddx_evals.gate.judgement import judge
    from ddx_evals.gate.table import Change, cases_of, changes, gone, read_table, table_file
    from ddx_evals.incidents import in_parallel, named_incidents

    if first and accept:
        raise UsageError("--first and --accept exclude each other", "Accept only after judging all incidents.")
    incidents = named_incidents(names or [])
    expected = read_table(table_file()) if table_file().exists() else {}
    now: list[CaseOutcome] = []
    doubts: list[str] = []
    with progress_line(quiet=as_json) as progress:
        for number, judged in enumerate(in_parallel(judge, incidents), 1):
            progress(f"{number} of {len(incidents)} incidents")
            now += judged.outcomes
            doubts += judged.doubts
            if first and any(change is not Change.WON for change, _ in changes(expected, judged.outcomes)):
                break
    found = [*changes(expected, now), *(() if names or first else gone(expected, cases_of(incidents)))]
    _show(found, doubts, len(now), as_json=as_json)
    if accept:
        raise typer.Exit(_accepted(expected, now, found, some_only=bool(names), lost=lost, quiet=as_json))
    raise typer.Exit(int(bool(doubts) or any(change is not Change.WON for change, _ in found)))


def _show(found: list[tuple[Change, str]], doubts: list[str], cases: int, *, as_json: bool) -> None:
    """Print a line per change and per doubt, for `grep` and `make mutants`, and the counts."""
    import json

    from ddx_evals.gate.table import Change

    ordered = [(kind, line) for kind in Change for change, line in found if change is kind]
    if as_json:
        changed = [{"change": kind, "what": line} for kind, line in ordered]
        print_json(json.dumps({"cases": cases, "changes": changed, "doubts": doubts}, indent=1))
        return
    for kind, line in ordered:
        typer.echo(f"{kind:5}  {line}")
    for line in doubts:
        typer.echo(f"doubt  {line}")
    counts = ", ".join(f"{sum(change is kind for change, _ in found)} {kind}" for kind in Change)
    typer.echo(f"{counts} of {cases} cases")


def _accepted(
    expected: Mapping[str, CaseOutcome],
    now: list[CaseOutcome],
    found: list[tuple[Change, str]],
    *,
    some_only: bool,
    lost: bool,
    quiet: bool,
) -> int:
    """Write all outcomes except losses to the table, with `lost` all; return 0 if the table then has everything."""
    from ddx_evals.gate.table import TABLE, Change, table_file, write_table

    losses = {line.partition(":")[0] for change, line in found if change is Change.LOST}
    taken = {outcome.case: outcome for outcome in now if lost or outcome.case not in losses}
    kept = expected if some_only else {case: expected[case] for case in losses & expected.keys()}
    write_table(table_file(), ({**kept, **taken}).values())
    refused = bool(losses) and not lost
    if not quiet:
        typer.echo(f"{TABLE} now has everything except the losses." if refused else f"{TABLE} now has everything.")
    return int(refused)
