"""Options that several evaluation commands share."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from ddx_tools.model.errors import UsageError


def help_of(command: Callable[..., None]) -> str:
    """The docstring of a command with one line per paragraph: typer keeps line breaks in all but the first."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(each.split()) for each in paragraphs)


def checked_file(parameter: typer.CallbackParam, file: Path | None) -> Path | None:
    """Check at the start that an output file can be written at the end. Raises UsageError if not."""
    option = f"--{parameter.name}"
    if file and not file.parent.is_dir():
        raise UsageError(f"{option} {file}: there is no directory {file.parent}", f"Create it: mkdir -p {file.parent}")
    if file and (file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK)):
        raise UsageError(f"{option} {file} cannot be written", "Name a file in a directory that you may write to.")
    return file


INCIDENTS = Annotated[
    list[str] | None,
    typer.Argument(
        help="Splits (dev), incidents (dev/0f3a) or directories. Default: all that ship.",
        metavar="[INCIDENT]…",
        show_default=False,
    ),
]
VIEWS = Annotated[
    list[str] | None, typer.Option("--view", help="View: full, log-only or partial; repeatable. Default: all.")
]
OUT = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", help="Also save the results to this file, for report and compare.", callback=checked_file
    ),
]
MARKDOWN = Annotated[
    Path | None,
    typer.Option("--markdown", help="Also write the table as Markdown to this file.", callback=checked_file),
]
