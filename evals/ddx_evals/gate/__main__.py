"""`python -m ddx_evals.gate`: the same as `ddx evals scores gate`, for a checkout without the command installed."""

from __future__ import annotations

import sys

import typer

from ddx_evals.gate.command import gate
from ddx_evals.terminal.options import help_of
from ddx_tools.model.errors import DdxError


def main() -> None:
    """Run the command."""
    app = typer.Typer(add_completion=False)
    app.command(help=help_of(gate))(gate)
    try:
        app(prog_name="python -m ddx_evals.gate")
    except DdxError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
