"""`ddx`: the command line.

Heavy modules (the evidence store, playbooks, torch) are imported by the commands that need them, so that
`ddx --help` answers at once.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from contextlib import nullcontext
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from ddx_server.baseline_command import GOOD_OPTION, baseline, beside_good_run
from ddx_server.bisect import bisect
from ddx_server.bundle_commands import app as bundle_app
from ddx_server.bundle_commands import capture, collect, show
from ddx_server.bundle_place import place_of_bundle
from ddx_server.failures import explain, print_no_more
from ddx_server.handed_in_commands import FACTS, FINDINGS, add_finding, facts, handed_in
from ddx_server.host_options import (
    DEADLINE_OPTION,
    GATEWAYS_OPTION,
    HOSTS_OPTION,
    K8S_OPTION,
    SLURM_OPTION,
    VIA_OPTION,
    node,
    reach,
)
from ddx_server.post_mortem_command import post_mortem
from ddx_server.probe_commands import mount_probes
from ddx_server.render.lacking import OutputNotWritten, lack_of_the_machine
from ddx_server.render.output import (
    EXIT_OURS,
    FORCE_OPTION,
    JSON_OPTION,
    SAVE_OPTION,
    TARGET,
    console,
    error_console,
    exit_with,
    print_json,
    progress_line,
)
from ddx_server.render.redacted_streams import as_it_is, redacted
from ddx_server.render.safe_text import safe
from ddx_server.report_command import REPORT_OPTION, refuse_page, report
from ddx_server.repro import repro
from ddx_server.similar_command import similar
from ddx_server.unattended_commands import LAUNCH_COMMAND, run, watch
from ddx_tools.model.errors import DdxError, UsageError
from ddx_tools.sources.hosts.ended_by_signals import ended_by_signals

_OBJECTS_BETWEEN_COLLECTIONS = 50_000
"""Modules, playbooks and rows are hundreds of thousands of objects; nearly all of them live until the end."""


class _OwnErrors(typer.core.TyperGroup):
    """Hides two errors from typer, which would turn them into exit code 1; here that means "diagnosed"."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except EOFError as error:
            raise RuntimeError("unexpected end of input") from error
        except BrokenPipeError as error:
            raise _ReaderGone from error


class _ReaderGone(Exception):
    """The reader of our output has closed the pipe."""


app = typer.Typer(
    name="ddx",
    cls=_OwnErrors,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Why is my distributed PyTorch job hung, crashed or slow? This rank, this line, this cause, this fix.

[bold]ddx why[/bold]                       the job on this host
[bold]ddx why 4242[/bold]                  the job of this pid (launcher or any rank)
[bold]ddx why --hosts n\\[1-64][/bold]       the job on all these hosts, at one moment
[bold]ddx why logs/ train.log[/bold]       any mix of logs, flight records and dumps
[bold]ddx why train.log --fact …[/bold]    add what you know or tried: works_on_one_node=no (ddx facts)
[bold]ddx ask "why is it hung?"[/bold]     a model investigates, with the same tools
[bold]ddx run -- torchrun …[/bold]         start a job so that its next hang explains itself
[bold]ddx doctor[/bold]                    what this machine lets ddx see

Exit codes: 0 healthy, 1 diagnosed, 3 undecided, 2 wrong usage or unusable input, 70 a bug in ddx.""",
)


def _say_version(wanted: bool) -> None:
    if wanted:
        print(f"ddx {version('debug-distributed')}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


@app.command(rich_help_panel="Diagnose")
def why(
    target: TARGET = None,
    note: Annotated[
        list[str] | None,
        typer.Option(
            help="A note for whoever reads the answer, kept verbatim and not interpreted; use --fact for what should "
            "count as evidence. Repeatable."
        ),
    ] = None,
    fact: FACTS = None,
    findings: FINDINGS = None,
    case: Annotated[
        bool, typer.Option("--case", help="Print the lines that may decide the case even if a cause is diagnosed.")
    ] = False,
    debug_server: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            show_default=False,
            help="Ask torch's debug server (torch.distributed.debug.start_debug_server) on rank 0 for all ranks of its "
            "job, instead of looking on this host.",
        ),
    ] = "",
    prometheus: Annotated[
        str,
        typer.Option(
            metavar="URL",
            show_default=False,
            help="Also ask this Prometheus-compatible server what exporters recorded about the job's hosts before it "
            "stopped: Xids, throttling, links, memory errors, OOM kills. A token, or USER:PASSWORD, comes from "
            "DDX_PROMETHEUS_TOKEN.",
        ),
    ] = "",
    save: SAVE_OPTION = None,
    force: FORCE_OPTION = False,
    page: REPORT_OPTION = None,
    good: GOOD_OPTION = None,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the answer as Markdown, at most 40 lines, for a ticket or a chat.")
    ] = False,
    hosts: HOSTS_OPTION = "",
    slurm: SLURM_OPTION = "",
    k8s: K8S_OPTION = "",
    via: VIA_OPTION = "",
    gateways: GATEWAYS_OPTION = "",
    deadline: DEADLINE_OPTION = 60.0,
    may_ask: Annotated[
        bool, typer.Option("--ask/--no-ask", help="At a terminal: ask for facts if the answer is undecided.")
    ] = True,
    as_json: JSON_OPTION = False,
) -> None:
    """Say which rank hangs (or broke) the job, where in the program, why, and what to do."""
    from ddx_server.render.diagnosis import render_diagnosis, show_command
    from ddx_server.serve.diagnosis_payload import diagnosis_json
    from ddx_server.standard_input import on_disk
    from ddx_tools.evidence.store import Store
    from ddx_tools.investigation.run import investigate

    refuse_page(page)
    if as_json and as_markdown:
        raise UsageError("--json and --markdown exclude each other", "Use only one of them.")
    with (
        progress_line(quiet=as_json) as progress,
        on_disk(target or []) as readable,
        place_of_bundle(save, force=force) as place,
        Store() if page or good else nullcontext() as store,
    ):
        on = reach(hosts, slurm, k8s, via, gateways, deadline)
        told = handed_in(fact or [], findings)
        found = investigate(
            readable,
            place,
            progress,
            note or [],
            reach=on,
            told=told,
            store=store,
            debug_server=debug_server or None,
            prometheus=prometheus or None,
        )
        progress("judging")
        diagnosis = found.diagnose().model_copy(update={"shown_by": show_command(target or [], save)})
        if good and store:
            diagnosis = diagnosis.model_copy(update={"good_run": beside_good_run(good, store, found, progress)})
        if page and store:
            from ddx_server.report.page import write_report

            progress("writing the report")
            write_report(page, store, found, diagnosis, readable)
    if as_json:
        print_json(diagnosis_json(diagnosis))
    elif as_markdown:
        from ddx_server.render.markdown import markdown

        console().out(markdown(diagnosis), end="", highlight=False)
    else:
        render_diagnosis(diagnosis, console(), with_case=case)
        if save:
            console().print(safe(f"saved: {save}    diagnose again: ddx why {save}", "dim"))
        if page:
            console().print(safe(f"report: {page}", "dim"))
        if may_ask:
            from ddx_server.questions import with_answers

            diagnosis = with_answers(found, diagnosis)
    exit_with(diagnosis)


@app.command(rich_help_panel="Diagnose")
def ask(
    question: Annotated[str, typer.Argument(help="Your question: 'why is my job hung?'", show_default=False)],
    target: TARGET = None,
    url: Annotated[
        str | None,
        typer.Option(help="An MCP server (ddx serve --http) on the machine that runs the job. Default: this machine."),
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with that server's token. Default: DDX_TOKEN.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Name of the model. Default: DDX_MODEL, ANTHROPIC_MODEL, or a built-in name.")
    ] = None,
    max_calls: Annotated[int, typer.Option(min=1, help="Maximum number of tool calls.")] = 40,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens, input and output.")] = 1_000_000,
    max_seconds: Annotated[float, typer.Option(min=1, help="Maximum time, in seconds.")] = 600.0,
    yes: Annotated[bool, typer.Option("--yes", help="Allow tools that do more than read without asking.")] = False,
    transcript: Annotated[
        Path | None, typer.Option(help="New file for the transcript. Default: .ddx/asked/<time>-<pid>.jsonl.")
    ] = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Let a model investigate with ddx's tools until it has a diagnosis or a budget is spent.

    Needs an Anthropic API key (ANTHROPIC_API_KEY; ANTHROPIC_BASE_URL for another address). Without a key it answers as
    `ddx why` does. The model sees what the tools return, with known kinds of secrets removed.
    """
    from ddx_server.ask.budget import AskLimits
    from ddx_server.ask.command import AskOptions, print_asked
    from ddx_server.ask.command import ask as ask_model
    from ddx_server.ask.connection import RemoteServer
    from ddx_server.ask.display import Display
    from ddx_server.standard_input import on_disk

    remote = RemoteServer(url, token_file) if url else None
    options = AskOptions(model, remote, AskLimits(max_calls, max_tokens, max_seconds), yes, transcript)
    with on_disk(target or []) as readable:
        asked = ask_model(question, readable, options, Display(None if as_json else console()))
    print_json(asked.to_json()) if as_json else print_asked(asked, console())
    exit_with(asked.diagnosis)


@app.command(rich_help_panel="Diagnose")
def playbook(
    page: Annotated[
        str | None,
        typer.Argument(help="Id of a symptom or a cause. Default: list all pages. new: create the page of a cause."),
    ] = None,
    new_id: Annotated[str | None, typer.Argument(help="After new: the id of the cause.", metavar="[ID]")] = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Show a playbook page: how to recognise a cause by hand, what decides it, how to fix it."""
    if page == "new" or new_id:
        from ddx_server.new_page import write_page

        if page != "new" or not new_id:
            raise UsageError(
                "only new takes a second argument, the id of the new page", "ddx playbook new loader-stuck"
            )
        place = write_page(new_id)
        if as_json:
            print_json(json.dumps({"page": str(place)}))
        else:
            console().print(safe(f"written: {place}    its format: docs/playbooks.md", "dim"))
        return
    from ddx_server.render.playbook import list_pages, show_page
    from ddx_tools.diagnosis.playbook import Cause, Symptom, load_playbooks

    playbooks = load_playbooks()
    if page is None:
        pages: list[Symptom | Cause] = [*playbooks.symptoms.values(), *playbooks.causes.values()]
        if as_json:
            print_json(json.dumps([{"id": p.id, "kind": p.kind, "title": p.title} for p in pages], indent=2))
        else:
            list_pages(playbooks, console())
    elif as_json:
        print_json(playbooks.page(page).model_dump_json(by_alias=True, indent=2))
    else:
        show_page(playbooks.page(page), console())


@app.command(rich_help_panel="Prepare")
def doctor(as_json: JSON_OPTION = False) -> None:
    """Show what this machine lets ddx see, and how to close each gap."""
    from ddx_server.doctor import examine, render
    from ddx_tools.sources.hosts.local import LocalHost

    report = examine(LocalHost())
    if as_json:
        print_json(report.model_dump_json(indent=2))
    else:
        render(report, console())


@app.command(rich_help_panel="Agents")
def install(
    client: Annotated[
        str, typer.Option(help="claude-code, claude-desktop, cursor, vscode, codex or gemini.", show_default=False)
    ] = "",
    write: Annotated[
        bool, typer.Option("--write", help="Add the entry to the client's file, keep what is there, and make a backup.")
    ] = False,
    root: Annotated[
        list[Path] | None,
        typer.Option(help="Directory that the server may read; repeatable. Default: the folder that is open."),
    ] = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Show, or write, the configuration that makes a coding agent start `ddx serve`."""
    from ddx_server.clients.catalogue import client_of
    from ddx_server.clients.install import plan, this_place
    from ddx_server.clients.install import write as write_entry
    from ddx_server.render.installation import render_installation

    installation = plan(client_of(client), this_place(), root or [])
    if write:
        installation = write_entry(installation)
    if as_json:
        print_json(json.dumps(installation.as_dict(), indent=2))
    else:
        render_installation(installation, console(), asked_to_write=write)


@app.command(rich_help_panel="Agents")
def serve(
    root: Annotated[
        list[Path] | None,
        typer.Option(help="Paths below this directory may be opened; repeatable. Default: the working directory."),
    ] = None,
    incidents: Annotated[
        Path | None, typer.Option(help="Directory for incidents. Default: .ddx/incidents in the first root.")
    ] = None,
    recorded: Annotated[
        Path | None, typer.Option(help="A bundle to answer from, instead of this machine.", metavar="BUNDLE")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            help="A tool that acts (preflight, network, native_stacks) and may run without asking if the client cannot "
            "ask its user; repeatable.",
            metavar="TOOL",
        ),
    ] = None,
    hosts: HOSTS_OPTION = "",
    slurm: SLURM_OPTION = "",
    k8s: K8S_OPTION = "",
    via: VIA_OPTION = "",
    gateways: GATEWAYS_OPTION = "",
    deadline: DEADLINE_OPTION = 60.0,
    http: Annotated[
        bool, typer.Option("--http", help="Use streamable HTTP instead of standard input and output.")
    ] = False,
    host: Annotated[str, typer.Option(help="With --http: the address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="With --http: the port; 0 picks a free one.", min=0, max=65535)] = 0,
    token_file: Annotated[
        Path | None,
        typer.Option(help="With --http: file with the bearer token. Default: DDX_TOKEN, or a new token for this run."),
    ] = None,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="With --http: allow an address that other machines can reach.")
    ] = False,
) -> None:
    """Serve ddx to coding agents over MCP; `ddx install` sets up a client to start it."""
    if not http and (port or token_file or allow_remote or host != "127.0.0.1"):
        raise UsageError("--host, --port, --token-file and --allow-remote need --http", "Try: ddx serve --http …")

    def say(text: str) -> None:
        print(text, file=as_it_is(sys.stderr), flush=True)

    from ddx_server.serve.app import build_server
    from ddx_server.serve.config import ServeConfig
    from ddx_tools.sources.bundle import is_bundle

    on = reach(hosts, slurm, k8s, via, gateways, deadline)
    allowed = [name.replace("-", "_") for name in allow or ()]
    if recorded is not None and recorded.exists() and not is_bundle(recorded):
        raise UsageError(f"{recorded} is not a bundle", "Name a bundle that `ddx capture` wrote.")
    config = ServeConfig.at(root or (), incidents=incidents, recorded=recorded, reach=on, allowed=allowed)
    server = build_server(config)
    if http:
        from ddx_server.serve.http_transport import HttpOptions, serve_http

        serve_http(server, HttpOptions(host, port, token_file, allow_remote), say)
    else:
        from ddx_server.serve.stdio_transport import serve_stdio

        serve_stdio(server, say)


@app.command(rich_help_panel="Diagnose")
def schema() -> None:
    """Print the JSON Schema of a diagnosis: what `ddx why --json` prints."""
    from ddx_tools.model.diagnosis import Diagnosis

    print_json(json.dumps(Diagnosis.model_json_schema(by_alias=True), indent=2))


def _mount_extensions() -> None:
    """Add the commands of other packages: `ddx.commands` entry points, each a function or a typer app."""
    for entry in sorted(entry_points(group="ddx.commands"), key=lambda entry: entry.name):
        brought = entry.load()
        if isinstance(brought, typer.Typer):
            app.add_typer(brought, name=entry.name, rich_help_panel="Learn")
        else:
            app.command(entry.name, rich_help_panel="Learn")(brought)


mount_probes(app)
app.command(rich_help_panel="Prepare", context_settings=LAUNCH_COMMAND)(run)
app.command(rich_help_panel="Diagnose")(watch)
app.command(rich_help_panel="Prepare")(bisect)
app.command(rich_help_panel="Prepare")(baseline)
app.command(rich_help_panel="Diagnose")(report)
app.command(rich_help_panel="Diagnose")(post_mortem)
app.command(rich_help_panel="Diagnose")(repro)
app.command(rich_help_panel="Diagnose")(capture)
app.command(rich_help_panel="Prepare")(collect)
app.command(rich_help_panel="Diagnose")(show)
app.command(rich_help_panel="Diagnose")(similar)
app.command(rich_help_panel="Diagnose")(add_finding)
app.command(rich_help_panel="Diagnose")(facts)
app.command(hidden=True)(node)
app.add_typer(bundle_app, name="bundle", rich_help_panel="Prepare")
_mount_extensions()


def main() -> None:
    """Run `ddx`: print expected failures in two lines, report others as a bug in ddx, and exit quietly on Ctrl-C."""
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    sys.stderr = redacted(sys.stderr)
    try:
        with ended_by_signals():
            app(prog_name="ddx")
    except OutputNotWritten as error:
        print_no_more()
        explain(error)
        sys.exit(error.exit_code)
    except DdxError as error:
        explain(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except (_ReaderGone, BrokenPipeError):
        print_no_more()
        sys.exit(128 + signal.SIGPIPE)
    except Exception as error:
        if os.environ.get("DDX_DEBUG"):
            raise
        if explained := lack_of_the_machine(error):
            explain(explained)
            sys.exit(explained.exit_code)
        error_console().print(safe(f"ddx failed: {type(error).__name__}: {error}", "red"))
        error_console().print("This is a bug in ddx, not in your job. DDX_DEBUG=1 shows where.", markup=False)
        sys.exit(EXIT_OURS)
