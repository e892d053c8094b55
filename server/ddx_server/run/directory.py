"""The directory of one run, with the ranks' sockets and records and the launcher's log.

run.json              the command, its start time, and the variables that were set (secrets redacted)
launcher.log          the launcher's output (`launcher.1.log`: the earlier part of long output)
end.log               how the launcher ended, in one line, for later readers of the logs
ranks/                sockets and records of the rank agents: see ddx_tools/payloads/rank_agent.py
logs/                 torchrun's log directory: <run id>/attempt_<n>/<local rank>/{stdout,stderr}.log
memory-kills.txt      the container's counters, if they show OOM kills while the job ran
flight_recorder/      dumps and pipes of torch's own flight recorder (NCCL)

Output of the job and the launcher and dumps of torch are stored unchanged, readable only by their owner. ddx redacts
secrets in whatever it saves, prints or sends.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddx_tools.model.errors import UsageError
from ddx_tools.redaction.structures import redact_argv, redact_value

SUBDIRECTORIES = ("ranks", "logs", "flight_recorder")


def create(wanted: Path | None) -> Path:
    """Create the run's directory (mode 0700) and return its absolute path.

    Raises UsageError if it cannot be created, or if it is not empty: two runs in one directory could not be
    distinguished.
    """
    path = wanted or Path("ddx-runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    path = path.absolute()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise UsageError(f"{path}: not empty", "Name a new directory with --dir, or leave --dir out.")
        path.chmod(0o700)
        for name in SUBDIRECTORIES:
            (path / name).mkdir(mode=0o700)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot create the run's directory ({error.strerror})",
            "Name another directory: ddx run --dir DIR -- …",
        ) from error
    return path


def describe(path: Path, argv: Sequence[str], record: Mapping[str, Any]) -> None:
    """Write `run.json`. In `record`, `variables` were set for the job and `kept` are the user's own."""
    whole = {
        "schema": 1,
        "command": shlex.join(redact_argv(argv)),
        "cwd": str(Path.cwd()),
        "host": socket.gethostname(),
        **record,
    }
    part = path / "run.json.part"
    part.write_text(json.dumps(redact_value(whole), indent=2) + "\n", encoding="utf-8")
    part.rename(path / "run.json")


def note_the_end(path: Path, code: int) -> None:
    """Write `end.log` if the job ended normally; the logs report any other end."""
    if code == 0:
        (path / "end.log").write_text("ddx run: the launcher ended with exit code 0\n", encoding="utf-8")


def sweep(path: Path) -> None:
    """Clean up after the job: remove dead ranks' sockets and empty fault files."""
    for entry in (path / "ranks").iterdir():
        pid = entry.name.split(".")[1] if entry.name.count(".") else ""
        if not pid.isdigit() or Path("/proc", pid).exists():
            continue
        if entry.suffix == ".sock" or (entry.name.endswith(".fault.txt") and entry.stat().st_size == 0):
            entry.unlink(missing_ok=True)
