"""`python -m ddx_evals`: the same as `ddx evals`, for when the command is not installed."""

import sys

from ddx_evals.commands import app
from ddx_tools.model.errors import DdxError

if __name__ == "__main__":
    try:
        app(prog_name="python -m ddx_evals")
    except DdxError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
