"""`ddx evals`: score whoever says why a training job failed, on incidents whose causes are known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddx_server.output import JSON_OPTION, console, error_console, print_json, progress_line
from ddx_tools.errors import UsageError

if TYPE_CHECKING:
    from ddx_evals.incidents import View
    from ddx_evals.results import Run

app = typer.Typer(no_args_is_help=True, help="Score whoever says why a job failed, on incidents with known causes.")

INCIDENTS = Annotated[
    list[str] | None,
    typer.Argument(
        help="Splits (dev), incidents (dev/0f3a) or directories; none: all that ship.",
        metavar="[INCIDENT]…",
        show_default=False,
    ),
]
VIEWS = Annotated[
    list[str] | None, typer.Option("--view", help="full, log-only or partial; several times. Default: all.")
]
OUT = Annotated[Path | None, typer.Option("--out", "-o", help="Also keep the results, for report and compare.")]
MARKDOWN = Annotated[Path | None, typer.Option("--markdown", help="Also write the table as Markdown, to this file.")]


@app.command("list")
def list_incidents(names: INCIDENTS = None, as_json: JSON_OPTION = False) -> None:
    """Show the incidents and their views, never what is true of them."""
    import json

    from ddx_evals.incidents import named_incidents

    found = [(f"{each.split}/{each.id}", [str(view) for view in each.views]) for each in named_incidents(names or [])]
    if as_json:
        print_json(json.dumps([{"incident": incident, "views": views} for incident, views in found], indent=1))
        return
    for incident, views in found:
        console().print(f"{incident:60} {' '.join(views)}", markup=False)


@app.command()
def check(names: INCIDENTS = None) -> None:
    """Say what makes an incident unfit to score anybody with: gaps in its truth, words that give the answer away."""
    from ddx_evals.incidents import named_incidents
    from ddx_evals.incidents.validation import problems

    incidents = named_incidents(names or [])
    found = [f"{each.split}/{each.id}: {problem}" for each in incidents for problem in problems(each)]
    for line in found:
        console().print(line, markup=False)
    console().print(f"{len(incidents)} incidents, {len(found)} problems")
    raise typer.Exit(int(bool(found)))


@app.command()
def run(
    names: INCIDENTS = None,
    systems: Annotated[
        list[str] | None, typer.Option("--system", help="A baseline; several times. Default: all of them.")
    ] = None,
    views: VIEWS = None,
    epochs: Annotated[int, typer.Option(min=1, help="Tries of each; baselines answer the same every time.")] = 1,
    out: OUT = None,
    markdown: MARKDOWN = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Score the baselines, which need no model and no network."""
    from ddx_evals.baselines import baselines
    from ddx_evals.incidents import named_incidents
    from ddx_evals.results import Run, this_checkout
    from ddx_evals.suite import run_suite

    incidents = named_incidents(names or [])
    known = baselines(incidents)
    if unknown := set(systems or ()) - set(known):
        raise UsageError(f"there is no baseline {min(unknown)!r}", f"Baselines: {', '.join(known)}")
    chosen = {name: answer for name, answer in known.items() if not systems or name in systems}
    with progress_line(quiet=as_json) as progress:
        results = run_suite(incidents, chosen, _views(views), epochs=epochs, progress=progress)
    _tell(Run(manifest=this_checkout(), results=results), out, markdown, as_json=as_json)


@app.command()
def serve(
    incident: Annotated[str, typer.Argument(help="dev/0f3a, or its directory.")],
    view: Annotated[str, typer.Option(help="full, log-only or partial.")] = "full",
    answers: Annotated[Path, typer.Option(help="Directory that collects what is reported.")] = Path("answers"),
    http: Annotated[bool, typer.Option("--http", help="Streamable HTTP instead of standard input and output.")] = False,
    port: Annotated[int, typer.Option(help="With --http: 0 takes one that is free.", min=0, max=65535)] = 0,
    token_file: Annotated[Path | None, typer.Option(help="With --http: the file of the bearer token.")] = None,
) -> None:
    """Serve one incident over MCP: the same tools as `ddx serve`, which answer out of what was recorded."""
    from ddx_evals.answer_files import new_try
    from ddx_evals.incidents import named_incidents
    from ddx_evals.replay import served

    found = named_incidents([incident])
    if len(found) != 1:
        raise UsageError(f"{incident} names {len(found)} incidents", "Serve one at a time: dev/0f3a.")
    (chosen_view,) = _views([view])

    def say(text: str) -> None:
        error_console().print(text, markup=False, soft_wrap=True)

    if chosen_view not in found[0].views:
        raise UsageError(f"{incident} has no view {view}", f"It has: {', '.join(found[0].views)}.")
    reports = new_try(answers, found[0], chosen_view)
    with served(found[0], chosen_view, reports) as server:
        if http:
            from ddx_server.serve.http_transport import HttpOptions, serve_http

            serve_http(server, HttpOptions("127.0.0.1", port, token_file), say)
        else:
            from ddx_server.serve.stdio_transport import serve_stdio

            serve_stdio(server, say)


@app.command()
def score(
    answers: Annotated[Path, typer.Argument(help="A diagnosis as JSON, or a directory that `serve` filled.")],
    incident: Annotated[str | None, typer.Option(help="Of a single diagnosis: dev/0f3a.")] = None,
    view: Annotated[str, typer.Option(help="Of a single diagnosis: the view that was seen.")] = "full",
    system: Annotated[str, typer.Option(help="What to call who answered.")] = "agent",
    out: OUT = None,
    markdown: MARKDOWN = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Score what an agent reported: every try below a directory, or one diagnosis."""
    from ddx_evals.answer_files import tries
    from ddx_evals.external import score_one, score_tries
    from ddx_evals.incidents import named_incidents
    from ddx_evals.results import Run, this_checkout

    if answers.is_dir():
        results = score_tries(tries(answers), system)
    elif not answers.exists():
        raise UsageError(f"{answers}: no such file or directory", "Name a diagnosis, or what `serve` filled.")
    elif incident is None:
        raise UsageError("whose diagnosis is it?", "Name the incident: --incident dev/0f3a")
    else:
        (chosen_view,) = _views([view])
        results = [score_one(answers, each, chosen_view, system) for each in named_incidents([incident])]
    _tell(Run(manifest=this_checkout(), results=results), out, markdown, as_json=as_json)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Results that run and score kept.")],
    markdown: MARKDOWN = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Show kept results as one table."""
    from ddx_evals.results import Run, read_run

    read = [read_run(file) for file in runs]
    together = Run(manifest=read[0].manifest, results=[result for each in read for result in each.results])
    _tell(together, None, markdown, as_json=as_json)


@app.command()
def compare(before: Path, now: Path, as_json: JSON_OPTION = False) -> None:
    """Show which cases were gained and lost between two kept results; exit code 1 if one was lost."""
    import json
    from dataclasses import asdict

    from ddx_evals.comparison import compare as compared
    from ddx_evals.results import read_run

    found = compared(read_run(before).results, read_run(now).results)
    lost = [change for change in found.changes if not change.gained]
    if as_json:
        print_json(json.dumps(asdict(found), indent=1))
    else:
        for change in found.changes:
            sign = "gained" if change.gained else "LOST"
            case = " ".join(change.case)
            console().print(
                f"{sign:7} {case:80} pass {change.passed_before:.2f} → {change.passed_now:.2f}, "
                f"score {change.score_before:.2f} → {change.score_now:.2f}",
                markup=False,
            )
        console().print(
            f"{len(found.changes) - len(lost)} gained, {len(lost)} lost, {found.unchanged} unchanged, "
            f"{len(found.only_before)} only before, {len(found.only_now)} only now"
        )
    raise typer.Exit(int(bool(lost)))


def _views(names: list[str] | None) -> list[View]:
    from ddx_evals.incidents import View

    if unknown := set(names or ()) - set(View):
        raise UsageError(f"there is no view {min(unknown)!r}", f"Views: {', '.join(View)}")
    return [View(name) for name in names] if names else list(View)


def _tell(results: Run, out: Path | None, markdown: Path | None, *, as_json: bool) -> None:
    from ddx_evals.leaderboard import markdown as as_markdown
    from ddx_evals.leaderboard import show
    from ddx_evals.summary import easy_cases, summaries

    rows = summaries(results.results)
    for file, text in ((out, results.to_json()), (markdown, as_markdown(rows))):
        if file:
            file.write_text(text, encoding="utf-8")
    if as_json:
        print_json(results.to_json())
        return
    show(rows, console())
    if easy := len(easy_cases(results.results)):
        console().print(f"easy, since grep solves them: {easy} cases", style="dim")
    for each in results.results:
        if each.error:
            told = f"failed: {each.system} on {each.split}/{each.incident} {each.view}: {each.error}"
            console().print(told, markup=False)
