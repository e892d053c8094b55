"""`ddx evals`: scores diagnoses of failed training jobs on incidents with known causes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ddx_evals.commands.agents import COMMAND_SETTINGS, agent, live
from ddx_evals.commands.scores import app as scores_app
from ddx_evals.commands.scores import hardness
from ddx_evals.commands.telling import end_if_unscored, tell
from ddx_evals.terminal.options import INCIDENTS, MARKDOWN, OUT, VIEWS, help_of
from ddx_server.render.output import JSON_OPTION, console, error_console, print_json, progress_line
from ddx_tools.model.errors import UsageError

app = typer.Typer(no_args_is_help=True, help="Score diagnoses of failed jobs on incidents with known causes.")

MODEL = Annotated[str | None, typer.Option(help="A model, as Inspect names it: anthropic/…, openai/…, ddx/scripted.")]
ARMS = Annotated[
    list[str] | None,
    typer.Option("--arm", help="The model's tools (default: server): none, shell, probes, all, server, ladder."),
]
CASES = Annotated[bool, typer.Option("--cases", help="Also show why each failing answer does not pass.")]
LOGS = Annotated[Path, typer.Option(help="Directory for Inspect's logs: inspect view --log-dir logs")]


@app.command("list")
def list_incidents(names: INCIDENTS = None, as_json: JSON_OPTION = False) -> None:
    """List the incidents and their views, without the truth."""
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
    """Check whether incidents are fit for scoring: no gaps in the truth, no words that give the answer away."""
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
        list[str] | None, typer.Option("--system", help="A baseline; repeatable. Default: all baselines.")
    ] = None,
    model: MODEL = None,
    arms: ARMS = None,
    logs: LOGS = Path("logs"),
    views: VIEWS = None,
    epochs: Annotated[int, typer.Option(min=1, help="Number of tries per case; baselines always answer the same.")] = 1,
    cases: CASES = False,
    out: OUT = None,
    markdown: MARKDOWN = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Score the baselines, which need no model and no network, or a model run by Inspect.

    Several arms of one model form an ablation: `--model NAME --arm ladder` shows what each tool is worth.
    """
    from ddx_evals.agents.arm import arms_named
    from ddx_evals.baselines import baselines
    from ddx_evals.incidents import chosen_views, named_incidents
    from ddx_evals.inspect_tasks.running import ModelRun, run_model
    from ddx_evals.results.run import Run, this_checkout
    from ddx_evals.results.suite import run_suite

    incidents = named_incidents(names or [])
    known = baselines(incidents)
    if unknown := set(systems or ()) - set(known):
        raise UsageError(f"there is no baseline {min(unknown)!r}", f"Baselines: {', '.join(known)}")
    everybody = not systems and not model
    chosen = {name: answer for name, answer in known.items() if everybody or name in (systems or ())}
    with progress_line(quiet=as_json) as progress:
        results = run_suite(
            incidents,
            chosen,
            chosen_views(views),
            epochs=epochs,
            processes=os.cpu_count() or 1,
            progress=progress,
        )
    if model:
        given = arms_named(arms)
        results += run_model(ModelRun(model, incidents, chosen_views(views), given, epochs, logs), quiet=as_json)
    told = Run(manifest=this_checkout(), results=results)
    tell(told, out, markdown, as_json=as_json, cases=cases)
    end_if_unscored(told, as_json=as_json)


@app.command()
def serve(
    incident: Annotated[str, typer.Argument(help="An incident (dev/0f3a) or its directory.")],
    view: Annotated[str, typer.Option(help="View to serve: full, log-only or partial.")] = "full",
    answers: Annotated[Path, typer.Option(help="Directory for the reported diagnoses.")] = Path("answers"),
    tools: Annotated[str, typer.Option(help="Tools to serve: server, probes (no playbooks) or none.")] = "server",
    http: Annotated[
        bool, typer.Option("--http", help="Use streamable HTTP instead of standard input and output.")
    ] = False,
    port: Annotated[int, typer.Option(help="With --http: the port; 0 picks a free one.", min=0, max=65535)] = 0,
    token_file: Annotated[Path | None, typer.Option(help="With --http: file with the bearer token.")] = None,
) -> None:
    """Serve one incident over MCP: the tools of `ddx serve`, answering from the recording."""
    from ddx_evals.agents.answer_files import new_try
    from ddx_evals.agents.arm import arm_named
    from ddx_evals.agents.replay import served
    from ddx_evals.incidents import chosen_views, named_incidents

    found = named_incidents([incident])
    if len(found) != 1:
        raise UsageError(f"{incident} names {len(found)} incidents", "Serve one at a time: dev/0f3a.")
    (chosen_view,) = chosen_views([view])

    def say(text: str) -> None:
        error_console().print(text, markup=False, soft_wrap=True)

    if chosen_view not in found[0].views:
        raise UsageError(f"{incident} has no view {view}", f"It has: {', '.join(found[0].views)}.")
    reports = new_try(answers, found[0], chosen_view)
    with served(found[0], chosen_view, reports, arm_named(tools).tools) as server:
        if http:
            from ddx_server.serve.http_transport import HttpOptions, serve_http

            serve_http(server, HttpOptions("127.0.0.1", port, token_file), say)
        else:
            from ddx_server.serve.stdio_transport import serve_stdio

            serve_stdio(server, say)


@app.command()
def score(
    answers: Annotated[Path, typer.Argument(help="A diagnosis as JSON, or a directory written by `serve`.")],
    incident: Annotated[
        str | None, typer.Option(help="For a single diagnosis: its incident, such as dev/0f3a.")
    ] = None,
    view: Annotated[str, typer.Option(help="For a single diagnosis: the view that was served.")] = "full",
    system: Annotated[
        str | None,
        typer.Option(help="Name of the system in the results. Default: as recorded in its tries, else agent."),
    ] = None,
    out: OUT = None,
    markdown: MARKDOWN = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Score an agent's reports: every try below a directory, or one diagnosis."""
    from ddx_evals.agents.answer_files import tries
    from ddx_evals.agents.answer_scores import UNNAMED, score_one, score_tries
    from ddx_evals.incidents import chosen_views, named_incidents
    from ddx_evals.results.run import Run, this_checkout

    if answers.is_dir():
        results = score_tries(tries(answers), system)
    elif not answers.exists():
        raise UsageError(
            f"{answers}: no such file or directory", "Name a diagnosis, or a directory written by `serve`."
        )
    elif incident is None:
        raise UsageError("the incident of this diagnosis is unknown", "Name it: --incident dev/0f3a")
    else:
        (chosen_view,) = chosen_views([view])
        results = [score_one(answers, each, chosen_view, system or UNNAMED) for each in named_incidents([incident])]
    told = Run(manifest=this_checkout(), results=results)
    tell(told, out, markdown, as_json=as_json, cases=True)
    end_if_unscored(told, as_json=as_json)


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Results saved by run, agent, live and score, or Inspect logs (.eval).")
    ],
    cases: CASES = False,
    markdown: MARKDOWN = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Show saved results in one table."""
    from ddx_evals.inspect_tasks.logs import SUFFIX, read_log
    from ddx_evals.results.run import Run, read_run

    read = [read_log(file) if file.suffix == SUFFIX else read_run(file) for file in runs]
    together = Run(manifest=read[0].manifest, results=[result for each in read for result in each.results])
    tell(together, None, markdown, as_json=as_json, cases=cases)


@app.command(name="handed-in")
def handed_in(
    places: Annotated[
        list[Path],
        typer.Argument(
            help="Session directories (.ddx/incidents), answer directories, or files of ddx add-finding --keep.",
            exists=True,
        ),
    ],
    as_json: JSON_OPTION = False,
) -> None:
    """Count the findings that agents and people submitted, as candidates for the message catalogue."""
    import json

    from ddx_evals.gate.handed_in import collected

    found = collected(places)
    if as_json:
        print_json(json.dumps([one.model_dump() for one in found], indent=1))
        return
    for one in found:
        console().print(
            f"{one.times:4} {one.code:36} in {one.incidents} incidents: {one.quotes[0][:160]}", markup=False
        )
    console().print(f"{sum(one.times for one in found)} submitted, with {len(found)} codes")


@app.command()
def compare(before: Path, now: Path, as_json: JSON_OPTION = False) -> None:
    """Show the cases gained and lost between two saved results; exit code 1 if any was lost."""
    import json
    from dataclasses import asdict

    from ddx_evals.results.comparison import compare as compared
    from ddx_evals.results.run import read_run

    found = compared(read_run(before).results, read_run(now).results)
    lost = [change for change in found.changes if not change.gained]
    if as_json:
        print_json(json.dumps(asdict(found), indent=1))
    else:
        if found.renamed:
            was, is_now = found.renamed
            console().print(f"{was} before, {is_now} now: compared, since each has only one system", markup=False)
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


for _command in (agent, live):
    app.command(context_settings=COMMAND_SETTINGS)(_command)
app.add_typer(scores_app, name="scores")
app.command("hardness", hidden=True, help=help_of(hardness))(hardness)  # the former name of `scores hardness`
