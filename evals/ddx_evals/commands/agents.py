"""`ddx evals agent` and `live`: run command-line agents on recorded incidents and on running jobs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ddx_evals.commands.telling import end_if_unscored, tell
from ddx_evals.terminal.options import MARKDOWN, OUT, VIEWS
from ddx_server.render.output import JSON_OPTION, progress_line
from ddx_tools.model.errors import UsageError

COMMAND_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
COMMAND = Annotated[
    list[str],
    typer.Argument(
        help="The agent's command; {task}, {task_file} and {mcp_config} stand for its task and the server's address."
    ),
]
SYSTEM = Annotated[str, typer.Option(help="Name of the agent in the results.")]
SEE = Annotated[
    list[Path] | None, typer.Option(help="The agent's own programs and files, which it may read; repeatable.")
]
ENV = Annotated[list[str] | None, typer.Option("--env", help="Name of a variable to pass to the agent; repeatable.")]
LIMIT_S = Annotated[float, typer.Option("--limit-s", min=1, help="Time limit for each try, in seconds.")]
ANSWERS = Annotated[Path, typer.Option(help="Directory for the results of all tries, one per system.")]
UNSEALED = Annotated[
    bool,
    typer.Option("--unsealed", help="Let the agent see this machine, including the truth; such runs are not ranked."),
]


def agent(
    command: COMMAND,
    on: Annotated[list[str], typer.Option(help="A split (dev), an incident (dev/9bb4e3) or a directory; repeatable.")],
    system: SYSTEM = "agent",
    arm: Annotated[
        str, typer.Option(help="The agent's tools: none, shell, probes, all or server; +skill adds the skill.")
    ] = "all",
    views: VIEWS = None,
    epochs: Annotated[int, typer.Option(min=1, help="Number of tries per case.")] = 1,
    see: SEE = None,
    env: ENV = None,
    limit_s: LIMIT_S = 1800.0,
    unsealed: UNSEALED = False,
    answers: ANSWERS = Path("answers"),
    out: OUT = None,
    markdown: MARKDOWN = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Run a command-line agent on each incident, sealed from the truth, and score its answers.

    `ddx evals agent --on dev --system mine -- my-agent --mcp-config {mcp_config} {task}`
    """
    from ddx_evals.agents.arm import arm_named
    from ddx_evals.agents.command import CommandAgent
    from ddx_evals.agents.running import run_agent
    from ddx_evals.incidents import chosen_views, named_incidents
    from ddx_evals.results.run import Run, this_checkout

    runner = CommandAgent(command, arm_named(arm), limit_s, see or (), _variables(env), not unsealed, system)
    with progress_line(quiet=as_json) as progress:
        tried = run_agent(runner, named_incidents(on), chosen_views(views), answers, epochs=epochs, progress=progress)
    results = Run(manifest=this_checkout(), results=tried)
    tell(results, out, markdown, as_json=as_json, cases=True)
    end_if_unscored(results, as_json=as_json)


def _variables(names: list[str] | None) -> dict[str, str]:
    if missing := [name for name in names or () if name not in os.environ]:
        raise UsageError(f"--env {missing[0]}: there is no such variable", "Set it, or omit it.")
    return {name: os.environ[name] for name in names or ()}


def live(
    command: COMMAND,
    scenarios: Annotated[list[str], typer.Option("--scenario", help="A scenario from `ddx lab list`; repeatable.")],
    system: SYSTEM = "agent",
    arm: Annotated[
        str,
        typer.Option(
            help="The agent's tools: server, probes or none; +skill adds the skill; with --unsealed, any arm."
        ),
    ] = "server",
    nproc: Annotated[
        int, typer.Option(help="Number of ranks; `ddx lab list` shows which numbers a scenario supports.")
    ] = 4,
    see: SEE = None,
    env: ENV = None,
    limit_s: LIMIT_S = 900.0,
    unsealed: UNSEALED = False,
    answers: ANSWERS = Path("answers"),
    out: OUT = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Start real jobs that go wrong and let an agent probe them while they run; speed counts as well.

    `ddx evals live --scenario fewer-batches -- my-agent --mcp-config {mcp_config} {task}`
    """
    from ddx_evals.agents.answer_files import check_free_of_others, next_try
    from ddx_evals.agents.arm import arm_named
    from ddx_evals.agents.command import CommandAgent
    from ddx_evals.agents.live import LIVE, attempt_live, check_live
    from ddx_evals.lab import LabError, load_scenarios
    from ddx_evals.results.run import Run, this_checkout

    known = load_scenarios()
    if unknown := set(scenarios) - set(known):
        raise UsageError(f"there is no scenario {min(unknown)!r}", "List them: ddx lab list")
    runner = CommandAgent(command, arm_named(arm), limit_s, see or (), _variables(env), not unsealed, system)
    chosen = [known[name] for name in scenarios]
    check_live(runner, chosen)
    check_free_of_others(answers, system)
    tried = []
    with progress_line(quiet=as_json) as progress:
        for scenario in chosen:
            progress(scenario.id)
            reports = next_try(answers / LIVE / scenario.id / "full")
            try:
                tried.append(attempt_live(runner, scenario, nproc, reports))
            except LabError as error:
                raise UsageError(str(error), "Try again: the machine may have been too slow.") from error
    results = Run(manifest=this_checkout(), results=tried)
    tell(results, out, None, as_json=as_json, cases=True)
    end_if_unscored(results, as_json=as_json)
