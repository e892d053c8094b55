"""Reads lines that show a job's restart by its script, launcher or scheduler: all above belongs to an earlier attempt.

Slurm: `… CANCELLED AT 2026-11-21T05:13:45 DUE TO JOB REQUEUE ***` (src/slurmd/slurmstepd/req.c), after which, as after
a node's failure or a preemption, the same log may go on; a shell's trace (`set -x`): `+ srun torchrun … train.py`;
torchrun: `I1117 13:39:42.119000 9920 …] [default] Starting worker group` or, in such a line,
`Rendezvous complete for workers. Result:` (torch/distributed/elastic/agent/server/api.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ddx_tools.parsers.logs.log_lines import LogLine
from ddx_tools.parsers.logs.log_prefixes import seconds_without_year

_STARTERS = (
    r"(?:srun|pdsh|clush|torchrun|mpirun|mpiexec|deepspeed|accelerate launch|-m torch\.distributed\.(?:run|launch))"
)
_REASONS = "(?:JOB REQUEUE|NODE FAILURE|PREEMPTION)"
WAKING = (
    f"CANCELLED AT .* DUE TO {_REASONS}",
    rf"^\+{{1,4}} .*{_STARTERS} ",
    r"\] Starting worker group|attempts left; will restart|\] Rendezvous complete for workers",
)
"""RE2 expressions; every line that `new_start` reads matches one of them."""

_REQUEUED = re.compile(rf"\*\*\* JOB \S{{1,40}} ON \S{{1,80}} CANCELLED AT \S{{1,30}} DUE TO (?P<why>{_REASONS})")
_TRACED = re.compile(
    rf"^\+{{1,4}} (?:.{{0,400}}[\s/])?{_STARTERS} .{{0,4000}}?(?P<program>[\w.-]{{1,200}}\.py)(?![\w.])"
)
_WORKERS = re.compile(
    r"\[[^\]]{0,80}\] (?:Starting worker group|Rendezvous complete for workers|"
    r"Worker group \w{1,20}\. \d{1,6}/\d{1,6} attempts left; will restart)"
)


@dataclass(frozen=True)
class NewStart:
    """A line that shows a start, perhaps a restart, of the job."""

    line: int
    program: str | None = None
    """The program that a traced command starts; None if the scheduler or a launcher reports the start."""
    if_steps_follow: bool = False
    """The scheduler reports only an end, after which the job may have been started again."""
    launcher: int | None = None
    """The process id of the torchrun that starts its workers."""
    in_year_s: float | None = None
    """When it starts them: seconds in an arbitrary year, because such a line has none."""


def new_start(line: LogLine) -> NewStart | None:
    """Return the start or restart of the job that a log line shows; None if it shows none.

    A scheduler's requeue is a restart; its node failures and preemptions count only if steps follow. A traced command
    or a launcher's message may be the first start.
    """
    text = line.text
    if " DUE TO " in text and (found := _REQUEUED.search(text)):
        return NewStart(line.number, if_steps_follow=found["why"] != "JOB REQUEUE")
    if text.startswith("+") and (found := _TRACED.match(text)):
        return NewStart(line.number, found["program"])
    if line.writer is not None and ("orker group" in text or "for workers" in text) and _WORKERS.match(text):
        return NewStart(line.number, launcher=line.writer, in_year_s=seconds_without_year(line.raw[:200]))
    return None
