"""What `ddx run` does, as a program that tests can signal: run_as_user.py DIR STALL_S ARGV…

A look takes no time and finds nobody to blame; what was looked at stands in incidents.txt.
"""

import sys
from pathlib import Path

from ddx_server.run import RunOptions, run_command
from ddx_server.run.look import JudgedLook
from ddx_tools.model.errors import DdxError


def note(target: str, bundle: Path, limit_s: float) -> JudgedLook:
    with open(bundle.parent / "incidents.txt", "a", encoding="utf-8") as file:
        file.write("what is left\n" if target == str(bundle.parent) else "what runs\n")
    return JudgedLook("undecided", "key", ["UNDECIDED  nobody knows"], lasting=True, waiting=True, at_work=False)


if __name__ == "__main__":
    directory, stall_after_s, *argv = sys.argv[1:]
    try:
        sys.exit(run_command(argv, RunOptions(Path(directory), float(stall_after_s) or None), note))
    except DdxError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
