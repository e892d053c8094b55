"""Measures how long ago a thread last ran, by the Linux scheduler's own clock."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

_EXEC_START = re.compile(r"^se\.exec_start\s*:\s*(-?[\d.]+)", re.M)
_OWN = Path("/proc/thread-self/sched")


class SchedulerClock:
    """Reads `se.exec_start` of /proc/<pid>/task/<tid>/sched: when the thread's run time was last updated, in ms.

    Every CPU has its own clock (`rq_clock_task`: it stops while a hypervisor or an interrupt has the CPU), and these
    drift apart by seconds on a busy virtual machine. So the clock of the CPU that the thread last ran on is compared
    with itself: the calling thread briefly moves to that CPU and reads its own `exec_start`. Linux, 2.6.23 or newer
    with CONFIG_SCHED_DEBUG (always on since 6.15); without it every answer is None.
    """

    def __init__(self) -> None:
        self._ahead_ms: dict[int, float | None] = {}
        """For each CPU, its clock minus the monotonic clock."""

    def idle_s(self, task: Path, cpu: int | None) -> float | None:
        """Seconds since the thread last ran on that CPU, 0 if it is running; None if unknown."""
        if cpu is None:
            return None
        if cpu not in self._ahead_ms:
            self._ahead_ms[cpu] = _ahead_ms(cpu)
        ahead, last = self._ahead_ms[cpu], _exec_start(task / "sched")
        if ahead is None or last is None:
            return None
        return round(max(0.0, _monotonic_ms() + ahead - last) / 1000, 4)


def _ahead_ms(cpu: int) -> float | None:
    usual = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {cpu})
        os.sched_yield()  # brings `exec_start` up to date if the thread was on this CPU already
        own = _exec_start(_OWN)
        return None if own is None else own - _monotonic_ms()
    except OSError:
        return None  # the CPU is offline, or not in this process's cpuset
    finally:
        os.sched_setaffinity(0, usual)


def _exec_start(sched: Path) -> float | None:
    try:
        found = _EXEC_START.search(sched.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return float(found[1]) if found else None


def _monotonic_ms() -> float:
    return time.monotonic_ns() / 1e6
