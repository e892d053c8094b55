"""Finds where in the program a rank was when its collective was aborted: from the watchdog's stack, or its own frames.

    [rank1]:[E1121 10:00:00.1 ProcessGroupNCCL.cpp:730] Stack trace of the failed collective:
    #0 all_reduce from /usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py:2937
    #1 step from /srv/job/train.py:41

(torch 2.6 to 2.13 with a flight recorder.) The frames have no label; they are the lines right below the head.

The watchdog of one or all ranks aborts the communicator; then a waiting call raises ("NCCL communicator was aborted"),
or the peers' connections close. Such an exception is not an independent failure, but its frames are a stack of that
moment, and are read with the rules for stacks (`knowledge/frames.yaml`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ddx_tools.analysis.log_events.attribution import distinct_places
from ddx_tools.analysis.log_events.log_event import LogEvent
from ddx_tools.analysis.log_events.watchdog_lines import speaker
from ddx_tools.knowledge.frame_classes import frame_rules
from ddx_tools.model.diagnosis import Location
from ddx_tools.model.stack_frame import Frame
from ddx_tools.model.user_frames import is_user_file
from ddx_tools.probes.job_log.exceptions import is_consequence

_HEAD, _FRAME = "torch_watchdog_stack", "torch_watchdog_stack_frame"


class Context(NamedTuple):
    """The activities and functions that enclosed a rank's call."""

    contexts: frozenset[str]
    user_functions: tuple[str, ...]
    """The functions of the program's own frames, innermost first."""


class Whereabouts:
    """The user's line of the failed collective and what enclosed it, by rank and attempt."""

    def __init__(self, events: list[LogEvent]) -> None:
        self._called: dict[tuple[int, int], Location] = {}
        self._raised: dict[tuple[int, int], Location | None] = {}
        self._contexts: dict[tuple[int, int], Context] = {}
        head: LogEvent | None = None
        last = 0
        for event in events:
            code, line = event.row["code"], event.row["source_line"]
            if event.kind == "traceback" and len(event.ranks) == 1 and is_consequence(event):
                self._raised.setdefault((event.ranks[0], event.attempt), event.location)
                self._contexts.setdefault((event.ranks[0], event.attempt), _context(event))
            elif code == _HEAD:
                head, last = event, line
            elif code == _FRAME and head and event.row["source"] == head.row["source"]:
                if line - last > 1 and event.details.get("stream") != head.details.get("stream"):
                    head = None
                    continue
                last = line
                self._take(head, event)

    def _take(self, head: LogEvent, frame: LogEvent) -> None:
        rank = speaker(head.details.get("quote") or "").job_rank
        if rank is None and len(head.ranks) == 1:
            rank = head.ranks[0]
        details = frame.details
        if rank is not None and is_user_file(details["file"]):
            place = Location(file=details["file"], line=int(details["line"]), function=details["function"])
            self._called.setdefault((rank, head.attempt), place)

    def places(self, ranks: Iterable[int], attempt: int) -> list[Location]:
        """Return the distinct user lines of some ranks: where they called according to the watchdog, else where they
        raised."""
        keys = [(rank, attempt) for rank in sorted(ranks)]
        called = [place for key in keys if (place := self._called.get(key))]
        return distinct_places(called or [place for key in keys if (place := self._raised.get(key))])

    def own(self, ranks: Iterable[int], peers: Iterable[int], attempt: int) -> Context | None:
        """Return what only these ranks, not their peers, were doing when their collective failed.

        It holds the contexts and functions of the program that enclosed the call. None if no stack of these ranks was
        logged.
        """
        told = [found for rank in sorted(ranks) if (found := self._contexts.get((rank, attempt)))]
        if not told:
            return None
        others = [found for rank in peers if (found := self._contexts.get((rank, attempt)))]
        shared = frozenset[str]().union(*(other.contexts for other in others))
        functions = tuple(dict.fromkeys(name for found in told for name in found.user_functions))
        return Context(frozenset[str]().union(*(found.contexts for found in told)) - shared, functions)


def _context(event: LogEvent) -> Context:
    frames = [_frame(text) for text in reversed(event.said[-1].frames)]
    functions = [frame.bare_function for frame in frames if frame.is_user]
    return Context(frozenset(frame_rules().contexts(frames, functions)), tuple(functions))


def _frame(text: str) -> Frame:
    """Parse one frame of `log_events.frames`: `file:line function`."""
    place, _, function = text.partition(" ")
    file, _, line = place.rpartition(":")
    return Frame(file, int(line) if line.isdecimal() and len(line) < 10 else 0, function)
