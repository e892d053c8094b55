"""The progress of each rank's collectives, from its agent's counters, and how long a collective may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_DEFAULT_LIMIT_S = {"nccl": 600.0}
_OTHER_LIMIT_S = 1800.0
"""torch's default timeout for a group that states none (torch/distributed/constants.py, 2.2 to 2.13)."""
_BUSY_SHARE = 0.5
JOINING = ("", "")
"""Stands for recorder and group while a rank waits for the others to join the job."""


@dataclass
class RankProgress:
    """The progress of one rank. Times are on the caller's monotonic clock, in seconds."""

    moved_s: float
    joined: bool = False
    """Whether the rank is in a process group, or waits for others to form one."""
    pending: dict[tuple[str, str], float] = field(default_factory=dict)
    """For each recorder and group: since when the rank may be in a collective that does not end.

    This is the time of the sample before the first that showed it: on a busy machine, samples can be far apart."""
    limit_s: float | None = None
    """The shortest timeout of the groups that it waits in, or of all its groups if it waits in none."""
    uses_nccl: bool = False
    longest_wait_s: float = 0.0
    """The longest wait in a collective that did end."""
    busy: bool = False
    """Whether the rank computed for most of the time between the last two samples."""
    _counters: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    _begun: list[tuple[object, object]] = field(default_factory=list)
    _cpu: tuple[float, float] | None = None
    _looked_s: float | None = None

    def look(self, header: Mapping[str, Any], now_s: float) -> None:
        """Update this rank's progress from `header`, its agent's reply to the request `status`.

        The reply has the process groups, their collective counters and the CPU time. `now_s` is the time of the reply
        on the caller's monotonic clock.
        """
        before_s = now_s if self._looked_s is None else self._looked_s
        self._looked_s = now_s
        self._look_at_cpu(header.get("process_cpu_s"), now_s)
        groups = [group for group in header.get("groups") or [] if isinstance(group, dict)]
        joining_s = header.get("joining_s")
        self.joined = bool(groups or joining_s)
        if joining_s:
            self.pending.setdefault(JOINING, before_s)
        else:
            self.pending.pop(JOINING, None)
        self.uses_nccl = any("nccl" in str(group.get("backend")) for group in groups)
        begun = [(group.get("name"), group.get("last_enqueued")) for group in groups]
        counters = dict(_counters(header.get("pg_status")))
        if (begun, counters) != (self._begun, self._counters):
            self.moved_s = now_s
        for key, (enqueued, completed) in counters.items():
            if self._counters.get(key) != (enqueued, completed) and key in self.pending:
                self.longest_wait_s = max(self.longest_wait_s, now_s - self.pending.pop(key))
            if enqueued != completed:
                self.pending.setdefault(key, before_s)
        self._begun, self._counters = begun, counters
        # Counters do not name their group: a group with as many started collectives as a pending counter may be the
        # one.
        waited = {counters[key][0] for key in self.pending if key in counters}
        waits = [group for group in groups if str(group.get("last_enqueued")) in waited]
        self.limit_s = min(map(_limit_s, waits or groups), default=joining_s)

    def _look_at_cpu(self, cpu_s: object, now_s: float) -> None:
        if not isinstance(cpu_s, int | float):
            return
        if self._cpu and now_s > self._cpu[1]:
            self.busy = (cpu_s - self._cpu[0]) / (now_s - self._cpu[1]) >= _BUSY_SHARE
        self._cpu = float(cpu_s), now_s

    @property
    def waits_since_s(self) -> float | None:
        """The time since which the rank may be in its oldest unfinished collective.

        It is in seconds on the caller's monotonic clock; None if no collective is unfinished.
        """
        return min(self.pending.values(), default=None)


def _limit_s(group: Mapping[str, Any]) -> float:
    told = group.get("timeout_s")
    if isinstance(told, int | float) and told > 0:
        return float(told)
    return min(_DEFAULT_LIMIT_S.get(name, _OTHER_LIMIT_S) for name in str(group.get("backend")).split(","))


def _counters(status: object) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """Pairs of (recorder, group) and (last enqueued, last completed collective)."""
    return [
        ((str(part), str(group)), (str(at.get("last_enqueued_collective")), str(at.get("last_completed_collective"))))
        for part, groups in (status.items() if isinstance(status, dict) else ())
        for group, at in (groups.items() if isinstance(groups, dict) else ())
        if isinstance(at, dict)
    ]
