"""The table that a person would draw of watchdog reports: by group and rank, what it waits in and how far it got."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ddx_tools.logs.event import Event
from ddx_tools.logs.watchdog_reports import Report
from ddx_tools.parsers.nccl.watchdog_lines import POINT_TO_POINT


@dataclass
class Position:
    """How far one rank got in one group."""

    rank: int
    waits: Report | None = None
    """The first operation that timed out on it."""
    enqueued: int | None = None
    """The last that its program called."""
    completed: int | None = None
    events: list[Event] = field(default_factory=list)

    @property
    def is_idle(self) -> bool:
        """Nothing of its own is pending in the group."""
        return self.waits is None and self.enqueued is not None and self.enqueued == self.completed


@dataclass
class GroupTable:
    """One process group of one attempt."""

    attempt: int
    group: str | None
    """None: the lines do not say it, so that they may even be of several groups."""
    label: str | None
    is_world: bool
    positions: dict[int, Position]
    comparable: bool
    """Numbers of its ranks count the same operations."""

    @property
    def waiting(self) -> dict[int, Report]:
        """The ranks that reported a timeout, with what they wait in."""
        return {rank: at.waits for rank, at in sorted(self.positions.items()) if at.waits}


def group_tables(reports: list[Report]) -> list[GroupTable]:
    """The tables of all groups; reports of ranks that nothing names are left out."""
    by_group: dict[tuple[int, str | None], list[Report]] = defaultdict(list)
    for report in reports:
        if report.rank is not None:
            by_group[report.event.attempt, report.group].append(report)
    return [_table(attempt, group, told) for (attempt, group), told in by_group.items()]


def _table(attempt: int, group: str | None, reports: list[Report]) -> GroupTable:
    positions: dict[int, Position] = {}
    for report in reports:
        if report.rank is not None:
            _take(positions.setdefault(report.rank, Position(report.rank)), report)
    return GroupTable(
        attempt=attempt,
        group=group,
        label=next((report.label for report in reports if report.label), None),
        is_world=any(report.is_world for report in reports),
        positions=dict(sorted(positions.items())),
        comparable=_is_comparable(group, reports),
    )


def _take(position: Position, report: Report) -> None:
    position.events.append(report.event)
    if report.timed_out:
        first = position.waits
        # The watchdog meets the oldest first, and repeats it as it ends the process; older versions go on to the next.
        if first is None or (report.seq is not None and first.seq is not None and report.seq < first.seq):
            position.waits = report
    if report.last_enqueued is not None and report.last_enqueued >= (position.enqueued or -1):
        position.enqueued, position.completed = report.last_enqueued, report.last_completed


def _is_comparable(group: str | None, reports: list[Report]) -> bool:
    if any(report.op_type in POINT_TO_POINT for report in reports):
        return False
    if group is not None:
        return True
    # No line names the group. Where members are counted otherwise than ranks, or a rank goes back, there are several.
    if any(None not in (report.member, report.rank) and report.member != report.rank for report in reports):
        return False
    seen: dict[int | None, int] = {}
    for report in reports:
        if report.timed_out and report.seq is not None:
            if report.seq < seen.get(report.rank, report.seq) and not _repeats(report, reports):
                return False
            seen[report.rank] = report.seq
    return True


def _repeats(report: Report, reports: list[Report]) -> bool:
    same = [each for each in reports if (each.rank, each.seq) == (report.rank, report.seq)]
    return same[0] is not report


def front(waiting: Iterable[Report]) -> int | None:
    """The number that most ranks wait at, of equals the lowest."""
    counts = Counter(report.seq for report in waiting)
    return min(counts, key=lambda seq: (-counts[seq], -1 if seq is None else seq))
