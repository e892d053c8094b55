"""What `ddx run` does, as a program that tests can signal: run_as_user.py DIR STALL_S ARGV…"""

import sys
from pathlib import Path

from ddx_server.run import Incident, RunOptions, run_command
from ddx_tools.errors import DdxError


def note(incident: Incident) -> None:
    with open(incident.run_dir / "incidents.txt", "a", encoding="utf-8") as file:
        file.write(f"{incident.kind} {incident.exit_code}\n")


if __name__ == "__main__":
    directory, stall_after_s, *argv = sys.argv[1:]
    try:
        sys.exit(run_command(argv, RunOptions(Path(directory), float(stall_after_s) or None), note))
    except DdxError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
