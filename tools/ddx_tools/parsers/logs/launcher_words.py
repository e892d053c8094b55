"""Reads launchers' messages, line by line, about the processes they started.

torchrun's agent     torch/distributed/elastic/multiprocessing/api.py, torch 1.10 to 2.15
torch.multiprocessing.spawn    torch/multiprocessing/spawn.py
DeepSpeed            deepspeed/launcher/launch.py (sigkill_handler)
srun                 src/srun/launch.c: `srun: error: node-1: tasks 0,2-3: Killed`
mpirun               Open MPI, orte/tools/orterun/help-orterun.txt, prrte/src/tools/prte/help-prun.txt
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ddx_tools.model.signals import signal_name, signal_number

WAKING = (
    r"failed \(exitcode",
    r"(?:closing|via) signal",
    r"got signal",
    r"terminated with",
    r"exits with return code",
    r"srun: error: ",
    r"exited on signal",
    r'"exit_code": ',
)
"""RE2 expressions; every line that `launcher_event` reads matches one of them."""

_NEEDLES = ("local_rank", "signal", "terminated with", "exits with return code", "srun: error: ", '"exit_code": ')
_TASKS_LIMIT = 1_024
_EVENTS = {
    "failed": re.compile(
        r"failed \(exitcode: (?P<code>-?\d{1,6})\) "
        r"local_rank: (?P<local_rank>\d{1,6}) \(pid: (?P<pid>\d{1,9})\)"
    ),
    "stopped": re.compile(
        r"(?:Sending|Terminating) process (?P<pid>\d{1,9}) (?:closing|via) signal (?P<signal>\w{1,20})"
    ),
    "launcher_stopped": re.compile(r"SignalException: Process (?P<pid>\d{1,9}) got signal: (?P<number>\d{1,3})"),
    "spawn_raised": re.compile(r"-- Process (?P<index>\d{1,6}) terminated with the following error:"),
    "spawn_exited": re.compile(
        r"ProcessExitedException: process (?P<index>\d{1,6}) terminated with "
        r"(?:signal (?P<signal>\w{1,20})|exit code (?P<code>\d{1,6}))"
    ),
    "child_exited": re.compile(
        r"--local_rank=(?P<local_rank>\d{1,6})\b.{0,4000}exits with return code = (?P<code>-?\d{1,6})"
    ),
    "task_exited": re.compile(
        r"srun: error: (?P<host>[\w.\-\[\],]{1,200}): tasks? (?P<tasks>[\d,\-\[\]]{1,400}): "
        r"(?:Exited with exit code (?P<code>\d{1,6})|(?P<words>[A-Z][\w ]{2,40}))"
    ),
    "rank_killed": re.compile(
        r"process rank (?P<rank>\d{1,6}) with PID (?P<pid>\d{1,9}) on node (?P<host>[\w.-]{1,200}) "
        r"exited on signal (?P<number>\d{1,3})"
    ),
    # ranks-ended.jsonl of `ddx run`; exits with code 0 are not reported.
    "rank_ended": re.compile(
        r'^\{"rank": (?P<rank>\d{1,6}), "pid": (?P<pid>\d{1,9}), "at_s": [\d.]{1,30}, '
        r'"exit_code": (?P<code>-?[1-9]\d{0,5})\}$'
    ),
}
# strsignal() of the C library, as srun prints it; the kernel's out-of-memory killer kills with SIGKILL.
_SIGNAL_WORDS = {
    "Killed": "SIGKILL",
    "Out Of Memory": "SIGKILL",
    "Terminated": "SIGTERM",
    "Aborted": "SIGABRT",
    "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Floating point exception": "SIGFPE",
    "Interrupt": "SIGINT",
}


@dataclass(frozen=True)
class LauncherEvent:
    """A launcher's message about one process, or several that ended the same way."""

    kind: str
    """`failed`, `stopped`, `launcher_stopped`, `spawn_raised`, `spawn_exited`, `child_exited`, `task_exited`,
    `rank_killed` or `rank_ended`."""
    pid: int | None = None
    local_rank: int | None = None
    index: int | None = None
    """The process index of mp.spawn, usually the rank."""
    exit_code: int | None = None
    """Negative: killed by that signal."""
    signal: str | None = None
    rank: int | None = None
    host: str | None = None
    tasks: tuple[int, ...] = ()
    """Slurm task numbers, which are ranks if each task is one."""


def launcher_event(text: str) -> LauncherEvent | None:
    """Return the launcher event in a line; None if there is none."""
    if not any(needle in text for needle in _NEEDLES):
        return None
    for kind, pattern in _EVENTS.items():
        if found := pattern.search(text):
            return _event(kind, found.groupdict())
    return None


def _event(kind: str, found: dict[str, str | None]) -> LauncherEvent | None:
    name = found.get("signal") or (signal_name(int(found["number"] or 0)) if "number" in found else None)
    if words := found.get("words"):
        name = next((signal for start, signal in _SIGNAL_WORDS.items() if words.startswith(start)), None)
        if name is None:
            return None
    ended = kind in ("spawn_exited", "task_exited", "rank_killed")
    number = signal_number(name) if name and ended else None
    return LauncherEvent(
        kind,
        pid=_integer(found.get("pid")),
        local_rank=_integer(found.get("local_rank")),
        index=_integer(found.get("index")),
        exit_code=-number if number else _integer(found.get("code")),
        signal=name,
        rank=_integer(found.get("rank")),
        host=found.get("host"),
        tasks=_tasks(found.get("tasks") or ""),
    )


def _tasks(text: str) -> tuple[int, ...]:
    """The numbers in a list such as `0,2-3`."""
    numbers: list[int] = []
    for first, last in re.findall(r"(\d{1,7})(?:-(\d{1,7}))?", text):
        numbers += range(int(first), min(int(last or first), int(first) + _TASKS_LIMIT) + 1)
    return tuple(numbers[:_TASKS_LIMIT])


def _integer(text: str | None) -> int | None:
    return int(text) if text else None
