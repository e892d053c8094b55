"""The ranks of a job according to its logs, and which of them are silent while others report."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ddx_tools.analysis.log_events.log_event import OWN_ENDS, REPORTED_ENDS, LogEvent

_REPORTS = ("watchdog", "gloo")
_STOPPED = (None, -15)
"""Exit codes that say nothing about the rank itself: the launcher stops ranks that are still alive."""


@dataclass(frozen=True)
class Crowd:
    """The ranks of a job: those that exist, those that its logs mention, and the silent ones."""

    world_size: int | None
    """The job size, if the output states exactly one; else from other evidence."""
    known: frozenset[int]
    """Ranks that the logs mention."""
    silent: frozenset[int]
    """Ranks that must exist, whose output would be in these logs, and that report no failure, own or foreign."""

    @property
    def everybody(self) -> frozenset[int]:
        """All ranks that must exist, since rank numbers have no gaps."""
        count = self.world_size or (max(self.known) + 1 if self.known else 0)
        return frozenset(range(count))

    def silent_among(self, waiting: frozenset[int]) -> tuple[list[int], bool] | None:
        """Return the ranks that report nothing while all others wait, and whether they may only lack a log.

        `waiting` are the ranks known to wait. None if no rank is silent, some rank neither waits nor is silent, or most
        are silent.
        """
        silent = sorted(self.everybody - waiting)
        if not silent or not self.silent >= set(silent):
            return None
        if len(silent) > len(waiting) or len(silent) == len(waiting) > 1:
            return None
        # The output of a whole host may be missing: consecutive ranks at one end.
        at_an_end = silent[0] == 0 or silent[-1] == max(self.everybody)
        in_a_row = len(silent) > 1 and silent[-1] - silent[0] + 1 == len(silent)
        # If the job's size is unknown and its log contains few ranks, a gap between them does not mean silence.
        few = self.world_size is None and 2 * len(silent) >= len(waiting)
        return silent, few or len(silent) == len(waiting) or (in_a_row and at_an_end)

    @property
    def complete(self) -> bool | None:
        """Whether `everybody` is known to contain all ranks of the job.

        True if the job's size is known, else None; it is never False.
        """
        return True if self.world_size else None


def read_crowd(events: list[LogEvent], seen_size: int | None = None) -> Crowd:
    """Determine the ranks of the job from its events. `seen_size`: the job size from a source other than its output."""
    known = frozenset(rank for event in events for rank in event.ranks if rank < 1 << 20)
    stated = {int(e.details["world_size"]) for e in events if e.row["code"] == "world_size_stated"}
    world_size = next(iter(stated)) if len(stated) == 1 else None if stated else seen_size
    if world_size is not None and (world_size > 1 << 20 or max(known, default=0) >= world_size):
        world_size = None
    crowd = Crowd(world_size, known, frozenset())
    told = {rank for event in events if _tells(event) for rank in event.ranks}
    return Crowd(world_size, known, frozenset(crowd.everybody - told if _is_mixed(events) else known - told))


def _tells(event: LogEvent) -> bool:
    return (
        event.kind in (*_REPORTS, "traceback", *OWN_ENDS)
        or (event.kind == "signature" and "collective" in (event.row["code"] or ""))
        or event.row["exit_code"] not in _STOPPED
    )


def _is_mixed(events: list[LogEvent]) -> bool:
    """Whether some file contains the output of several ranks, and so would contain that of all ranks."""
    by_source: dict[str, set[int]] = defaultdict(set)
    for event in events:
        if event.kind not in REPORTED_ENDS:
            by_source[event.row["source"]].update(event.ranks)
    return any(len(ranks) > 1 for ranks in by_source.values())
