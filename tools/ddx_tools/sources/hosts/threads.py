"""The Linux kernel's state of a process's threads, as JSON. Reading it does not touch the threads.

    {"pid", "reason",                        reason: why the list is empty, null otherwise
     "threads": [{
        "tid", "name", "state",              state: letter of /proc/<pid>/task/<tid>/stat
        "wchan",                             kernel function it sleeps in
        "syscall": {"nr", "name", "fd", "target"},
        "voluntary_switches", "involuntary_switches",
        "cpu_ns",                            time on a CPU since it started (schedstat)
        "blocked_s"}]}                       seconds since it last ran, see `SchedulerClock`

Values that the kernel or its permissions do not give are null. Formats: proc(5), Documentation/scheduler/sched-stats.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddx_tools.sources.hosts.scheduler_clock import SchedulerClock
from ddx_tools.sources.hosts.syscalls import FD_CALLS, name_of

_MAX_THREADS = 2_000
_PROCESSOR = 36  # field 39 of proc(5)'s stat, counted from the state


def read_threads(pid: int, tids: Sequence[int] = ()) -> bytes:
    """Read the given threads of a process once, or all; a thread that is gone is left out."""
    if sys.platform != "linux":
        return _report(pid, [], f"the kernel state of threads can be read only on Linux, not on {platform.system()}")
    tasks = Path(f"/proc/{pid}/task")
    try:
        wanted = sorted(tids) or sorted(int(entry.name) for entry in tasks.iterdir())
    except OSError as error:
        return _report(pid, [], f"{tasks}: {(error.strerror or str(error)).lower()}")
    clock = SchedulerClock()
    found = [_thread(tasks / str(tid), tid, clock) for tid in wanted[:_MAX_THREADS]]
    threads = [thread for thread in found if thread]
    return _report(pid, threads, None if threads else f"{tasks}: none of the threads exists any more")


def _report(pid: int, threads: list[dict[str, Any]], reason: str | None) -> bytes:
    return json.dumps({"pid": pid, "reason": reason, "threads": threads}).encode()


def _thread(task: Path, tid: int, clock: SchedulerClock) -> dict[str, Any] | None:
    stat = _text(task / "stat")
    if stat is None:
        return None
    fields = stat[stat.rfind(")") + 2 :].split()
    last_cpu = int(fields[_PROCESSOR]) if len(fields) > _PROCESSOR else None
    status = _text(task / "status") or ""
    schedstat = (_text(task / "schedstat") or "").split()
    return {
        "tid": tid,
        "name": stat[stat.find("(") + 1 : stat.rfind(")")],
        "state": fields[0] if fields else None,
        "wchan": _wchan(task),
        "syscall": _syscall(task),
        "voluntary_switches": _number(status, "voluntary_ctxt_switches"),
        "involuntary_switches": _number(status, "nonvoluntary_ctxt_switches"),
        "cpu_ns": int(schedstat[0]) if schedstat else None,
        "blocked_s": clock.idle_s(task, last_cpu),
    }


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _number(status: str, key: str) -> int | None:
    found = re.search(rf"^{key}:\s*(\d+)", status, re.M)
    return int(found[1]) if found else None


def _wchan(task: Path) -> str | None:
    """The kernel function that the thread sleeps in; "0" means that it runs, or that this user may not know."""
    wchan = _text(task / "wchan")
    return wchan if wchan and wchan != "0" else None


def _syscall(task: Path) -> dict[str, Any] | None:
    """The system call that a blocked thread is in; None while it runs (the file says "running") or if not permitted.

    The file holds the number, six arguments, stack pointer and program counter, all but the number in hex; the number
    is -1 for a thread that is blocked outside a call.
    """
    fields = (_text(task / "syscall") or "").split()
    if len(fields) < 7 or fields[0].startswith("-"):
        return None
    number = int(fields[0])
    name = name_of(number, platform.machine())
    fd = int(fields[1], 16) if name in FD_CALLS else None
    if fd is not None and fd > 1 << 24:
        fd = None
    return {"nr": number, "name": name, "fd": fd, "target": None if fd is None else _target(task, fd)}


def _target(task: Path, fd: int) -> str | None:
    try:
        return str((task / "fd" / str(fd)).readlink())[:500]
    except OSError:
        return None
