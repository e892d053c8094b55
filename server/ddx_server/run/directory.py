"""The directory of one run: where ranks put their sockets and records, and the launcher its log.

run.json              what was started, when, and which variables were set (secrets redacted)
launcher.log          what the launcher printed (`launcher.1.log`: what came before, if it was much)
end.log               how the launcher ended: one line, for whoever reads the logs later
ranks/                sockets and records of the rank agents: see ddx_tools/payloads/rank_agent.py
logs/                 torchrun's log directory: <run id>/attempt_<n>/<local rank>/{stdout,stderr}.log
memory-kills.txt      counters of the container, if they say that the kernel killed for memory while the job ran
flight_recorder/      dumps and pipes of torch's own flight recorder (NCCL)

What the job and the launcher print, and what torch dumps, lies there as they wrote it, readable for its owner only.
Secrets are redacted where ddx keeps, prints or sends any of it.
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
    """Make the run's directory (mode 0700) and return its absolute path.

    Raises UsageError if it cannot be made, or if it holds something already: two runs in one directory could
    not be distinguished.
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
            f"{path}: cannot make the run's directory ({error.strerror})",
            "Name another one: ddx run --dir DIR -- …",
        ) from error
    return path


def describe(path: Path, argv: Sequence[str], record: Mapping[str, Any]) -> None:
    """Write `run.json`. In `record`: `variables` were set for the job, `kept` are the user's own."""
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
    """Write `end.log`, if the job ended well: of any other end the logs tell."""
    if code == 0:
        (path / "end.log").write_text("ddx run: the launcher ended with exit code 0\n", encoding="utf-8")


def sweep(path: Path) -> None:
    """After the job: take away the sockets of dead ranks, and fault files that no fault was written to."""
    for entry in (path / "ranks").iterdir():
        pid = entry.name.split(".")[1] if entry.name.count(".") else ""
        if not pid.isdigit() or Path("/proc", pid).exists():
            continue
        if entry.suffix == ".sock" or (entry.name.endswith(".fault.txt") and entry.stat().st_size == 0):
            entry.unlink(missing_ok=True)
