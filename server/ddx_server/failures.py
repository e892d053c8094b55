"""Reports why a command failed: two lines on standard error, or JSON."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

from ddx_server.render.lacking import OutputNotWritten
from ddx_server.render.output import error_console, print_json
from ddx_server.render.safe_text import safe
from ddx_tools.model.errors import DdxError


def explain(error: DdxError) -> None:
    """Print what happened and what to type, if anybody can read it; the exit code reports the failure in any case."""
    with suppress(OutputNotWritten):
        _explain_to_reader(error)


def _explain_to_reader(error: DdxError) -> None:
    if "--json" in sys.argv and not isinstance(error, OutputNotWritten):
        print_json(json.dumps({"error": error.message, "help": error.help}))
        return
    # Not wrapped, so that the command in it can be copied.
    error_console().print(safe(error.message, "red", limit=4000), soft_wrap=True)
    if error.help:
        error_console().print(safe(error.help, limit=4000), soft_wrap=True)


def print_no_more() -> None:
    """Discard the remaining output: flushing it at exit would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
