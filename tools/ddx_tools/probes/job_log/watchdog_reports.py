"""Turns watchdog lines into reports of one rank about one process group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ddx_tools.analysis.log_events.fingerprint import operation_name
from ddx_tools.analysis.log_events.log_event import LogEvent
from ddx_tools.analysis.log_events.watchdog_lines import speaker

_TIMEOUTS = ("torch_watchdog_timeout", "torch_work_timed_out")
_PROGRESS = "torch_watchdog_progress"


@dataclass(frozen=True)
class WatchdogReport:
    """What one line says about one rank in one group. Missing values are None."""

    event: LogEvent
    rank: int | None
    member: int | None
    """The rank's number within the group."""
    group: str | None
    name: str | None
    is_world: bool
    op_type: str | None = None
    """The operation's name in ProcessGroupNCCL: `_ALLGATHER_BASE`."""
    seq: int | None = None
    numel_in: int | None = None
    numel_out: int | None = None
    timeout_ms: int | None = None
    elapsed_ms: int | None = None
    last_enqueued: int | None = None
    last_completed: int | None = None
    """The last completed sequence number; -1 if there is none yet."""

    @property
    def timed_out(self) -> bool:
        """Whether the rank waited in this operation until the timeout."""
        return self.op_type is not None

    @property
    def sizes(self) -> dict[str, int | None]:
        """The number of input and output elements."""
        return {"numel_in": self.numel_in, "numel_out": self.numel_out}

    @property
    def queued(self) -> int | None:
        """How many of the rank's calls are not completed; None if a counter is missing."""
        if self.last_enqueued is None or self.last_completed is None:
            return None
        return self.last_enqueued - self.last_completed

    @property
    def operation(self) -> str | None:
        """The operation's name in torch.distributed: `all_gather_into_tensor`."""
        return operation_name(self.op_type) if self.op_type else None

    @property
    def label(self) -> str | None:
        """The group's name for a person."""
        if self.group is None:
            return None
        return self.name or ("default_pg" if self.is_world else f"group {self.group}")


def read_reports(events: list[LogEvent]) -> list[WatchdogReport]:
    """Return the reports about timeouts and progress, in line order."""
    reports = [_report(event) for event in events if event.row["code"] in (*_TIMEOUTS, _PROGRESS)]
    return _with_groups(reports)


def _report(event: LogEvent) -> WatchdogReport:
    details = event.details
    who = speaker(details.get("quote") or "")
    number = _numbers(details)
    enqueued, completed = number("last_enqueued"), number("last_completed")
    if enqueued is not None and completed is not None and completed > enqueued:
        completed = None  # torch 2.3 prints a number that was never set
    return WatchdogReport(
        event=event,
        rank=_rank(event, who.job_rank, who.member, is_part=who.group is not None and not who.is_world),
        member=who.member,
        group=who.group,
        name=who.name,
        is_world=who.is_world,
        op_type=details.get("operation") if event.row["code"] in _TIMEOUTS else None,
        seq=number("seq"),
        numel_in=number("numel_in"),
        numel_out=number("numel_out"),
        timeout_ms=number("timeout_ms"),
        elapsed_ms=number("elapsed_ms"),
        last_enqueued=enqueued,
        last_completed=completed,
    )


def _rank(event: LogEvent, job_rank: int | None, member: int | None, *, is_part: bool) -> int | None:
    if job_rank is not None:
        return job_rank
    rank = event.ranks[0] if len(event.ranks) == 1 else None
    # Without a label, the number may be that within the group.
    return None if is_part and rank == member and event.joined is None else rank


def _numbers(details: dict[str, Any]) -> Callable[[str], int | None]:
    def number(name: str) -> int | None:
        try:
            return int(details[name])
        except (KeyError, ValueError):
            return None

    return number


Named = tuple[str, str | None, bool]
"""(key of a group, its name, whether it is the group of all ranks)"""


def _with_groups(reports: list[WatchdogReport]) -> list[WatchdogReport]:
    """Fill in the groups of timeouts: their line names none, but others of the same rank and number, or of its peers,
    do.

    First choice is a later line of the same rank and number; then one of another rank in the same operation and number;
    then, if the attempt's lines name only one group, one of any rank at that number. Cut logs may keep such a line for
    one rank but not for the next.
    """
    told = _joined(reports, lambda report: (report.event.attempt, report.rank, report.seq), needs_rank=True)
    told = _joined(told, lambda report: (report.event.attempt, report.op_type, report.seq), needs_rank=False)
    groups: dict[int, set[str]] = defaultdict(set)
    for report in told:
        if report.group is not None:
            groups[report.event.attempt].add(report.group)
    if any(len(named) > 1 for named in groups.values()):
        return told
    return _joined(told, lambda report: (report.event.attempt, report.seq), needs_rank=False)


def _joined(
    reports: list[WatchdogReport], key: Callable[[WatchdogReport], Any], *, needs_rank: bool
) -> list[WatchdogReport]:
    """The reports, where timeouts without a group get the only group that others with the same key name."""
    known: dict[Any, set[Named]] = defaultdict(set)
    for report in reports:
        if report.group is not None:
            known[key(report)].add((report.group, report.name, report.is_world))
    found = []
    for report in reports:
        named = known[key(report)] if report.seq is not None and (report.rank is not None or not needs_rank) else set()
        if report.group is None and report.timed_out and len(named) == 1:
            group, name, is_world = next(iter(named))
            report = replace(report, group=group, name=name, is_world=is_world)
        found.append(report)
    return found
