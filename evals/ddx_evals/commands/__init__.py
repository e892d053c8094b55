"""The command line of the evaluation: `ddx evals`."""

from ddx_evals.commands.evals import app

__all__ = ["app"]
