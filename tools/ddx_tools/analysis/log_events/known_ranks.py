"""Which ranks a job has, as its logs tell, and which of them keep silent while others report."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ddx_tools.analysis.log_events.log_event import OWN_ENDS, REPORTED_ENDS, LogEvent

_REPORTS = ("watchdog", "gloo")
_STOPPED = (None, -15)
"""Exit codes that say nothing of the rank itself: the launcher stops those that still live."""


@dataclass(frozen=True)
class Crowd:
    """The ranks of a job."""

    world_size: int | None
    """If the output states one, and only one; else as it was seen otherwise."""
    known: frozenset[int]
    """Ranks that the logs mention."""
    silent: frozenset[int]
    """Ranks that must exist, whose output would stand in these logs, and that report no failure, own or foreign."""

    @property
    def everybody(self) -> frozenset[int]:
        """All ranks that must exist: ranks have no gaps."""
        count = self.world_size or (max(self.known) + 1 if self.known else 0)
        return frozenset(range(count))

    def silent_among(self, waiting: frozenset[int]) -> tuple[list[int], bool] | None:
        """The ranks without a word where all others wait, and whether they may merely be absent from the log.

        None: there are none, or others neither wait nor keep silent, or most are silent, as in the log of a few ranks.
        """
        silent = sorted(self.everybody - waiting)
        if not silent or not self.silent >= set(silent):
            return None
        if len(silent) > len(waiting) or len(silent) == len(waiting) > 1:
            return None
        # The output of a whole node may be missing: ranks in a row, at one end.
        at_an_end = silent[0] == 0 or silent[-1] == max(self.everybody)
        in_a_row = len(silent) > 1 and silent[-1] - silent[0] + 1 == len(silent)
        # Of a job of unknown size whose log holds a few ranks, a gap between them is no silence.
        few = self.world_size is None and 2 * len(silent) >= len(waiting)
        return silent, few or len(silent) == len(waiting) or (in_a_row and at_an_end)

    @property
    def complete(self) -> bool | None:
        """Whether `everybody` is all ranks; None if nothing states how many there are."""
        return True if self.world_size else None


def read_crowd(events: list[LogEvent], seen_size: int | None = None) -> Crowd:
    """The ranks of the job that these events are of. `seen_size`: their number, by something else than its output."""
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
    """Whether some file holds the output of several ranks: then those of all ranks would stand in it."""
    by_source: dict[str, set[int]] = defaultdict(set)
    for event in events:
        if event.kind not in REPORTED_ENDS:
            by_source[event.row["source"]].update(event.ranks)
    return any(len(ranks) > 1 for ranks in by_source.values())
