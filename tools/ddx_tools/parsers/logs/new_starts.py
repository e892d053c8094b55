"""Reads lines that show a job's restart by its script or scheduler: everything above belongs to an earlier attempt.

Slurm: `… CANCELLED AT 2026-11-21T05:13:45 DUE TO JOB REQUEUE ***` (src/slurmd/slurmstepd/req.c); a shell's trace
(`set -x`): `+ srun torchrun … train.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_STARTERS = (
    r"(?:srun|pdsh|clush|torchrun|mpirun|mpiexec|deepspeed|accelerate launch|-m torch\.distributed\.(?:run|launch))"
)
WAKING = ("DUE TO JOB REQUEUE", rf"^\+{{1,4}} .*{_STARTERS} ")
"""RE2 expressions; every line that `new_start` reads matches one of them."""

_REQUEUED = re.compile(r"\*\*\* JOB \S{1,40} ON \S{1,80} CANCELLED AT \S{1,30} DUE TO JOB REQUEUE")
_TRACED = re.compile(
    rf"^\+{{1,4}} (?:.{{0,400}}[\s/])?{_STARTERS} .{{0,4000}}?(?P<program>[\w.-]{{1,200}}\.py)(?![\w.])"
)


@dataclass(frozen=True)
class NewStart:
    """A line that shows a start, perhaps a restart, of the job."""

    line: int
    program: str | None = None
    """The program that a traced command starts; None if the scheduler reports the restart."""


def new_start(number: int, text: str) -> NewStart | None:
    """Return the start in a line; None if there is none. A traced command by itself may be the first start."""
    if "DUE TO JOB REQUEUE" in text and _REQUEUED.search(text):
        return NewStart(number)
    if text.startswith("+") and (found := _TRACED.match(text)):
        return NewStart(number, found["program"])
    return None
