"""Shared by all commands: options, consoles, progress, exit codes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from ddx_server.render.redacted_streams import as_it_is, redacted, written
from ddx_tools.model.diagnosis import Diagnosis, ProbeResult, ProbeStatus, Severity, Verdict

_WIDTH_OF_A_PIPE = 160
_COLUMNS = re.compile(r"[1-9][0-9]{0,3}")
EXIT_HEALTHY, EXIT_DIAGNOSED, EXIT_UNDECIDED, EXIT_OURS = 0, 1, 3, 70  # 2: see DdxError

JSON_OPTION = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for programs and agents.")]
TARGET = Annotated[
    list[str] | None,
    typer.Argument(
        help="A pid (launcher or any rank), a bundle, any mix of files and directories (logs, flight records, error "
        "files), or - for a log on standard input. Default: the job on this host.",
        show_default=False,
    ),
]
SAVE_OPTION = Annotated[
    Path | None,
    typer.Option(
        "--save", help="Save all raw material as a bundle: a new directory, or a file name ending in .tar.zst."
    ),
]
FORCE_OPTION = Annotated[bool, typer.Option("--force", help="Replace an existing bundle of that name.")]


class _Console(Console):
    """A console that leaves it to `main` how a command ends whose reader has gone; rich's exits with 1."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError."""
        raise BrokenPipeError


def console() -> Console:
    """The console for standard output. Colours are on only on a terminal (see NO_COLOR); COLUMNS sets a pipe's
    width."""
    width = None if sys.stdout.isatty() else _WIDTH_OF_A_PIPE
    if _COLUMNS.fullmatch(columns := os.environ.get("COLUMNS", "")):
        width = int(columns)
    return _Console(file=redacted(sys.stdout), highlight=False, width=width)


def error_console() -> Console:
    """The console for standard error."""
    return _Console(file=redacted(sys.stderr), stderr=True, highlight=False)


def print_json(text: str) -> None:
    """Print JSON, without secrets, and nothing else on standard output."""
    from ddx_tools.redaction.structures import redact_json

    with written():
        print(redact_json(text), file=as_it_is(sys.stdout), flush=True)


@contextmanager
def progress_line(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows progress in a line on standard error; silent if `quiet` or not on a terminal."""
    terminal = error_console()
    if quiet or not terminal.is_terminal:
        yield lambda _: None
        return
    with terminal.status("starting …") as status:
        yield lambda text: status.update(f"{text} …")


def exit_with(outcome: Diagnosis | ProbeResult) -> NoReturn:
    """Exit with the exit code of the outcome."""
    raise typer.Exit(_exit_code(outcome))


def _exit_code(outcome: Diagnosis | ProbeResult) -> int:
    """The exit code of an outcome, so that `ddx network --peer node-1 && srun …` starts no job that is bound to
    fail."""
    if isinstance(outcome, Diagnosis):
        codes = {Verdict.HEALTHY: EXIT_HEALTHY, Verdict.DIAGNOSED: EXIT_DIAGNOSED}
        return codes.get(outcome.verdict, EXIT_UNDECIDED)
    if outcome.status in (ProbeStatus.NO_DATA, ProbeStatus.NOT_RECORDED):
        return EXIT_UNDECIDED
    failed = any(finding.severity in (Severity.WARNING, Severity.FAILURE) for finding in outcome.findings)
    return EXIT_DIAGNOSED if failed else EXIT_HEALTHY
