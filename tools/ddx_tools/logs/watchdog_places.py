"""Where in the program a rank called the collective that timed out: the stack that the watchdog prints below it.

    [rank1]:[E1121 10:00:00.1 ProcessGroupNCCL.cpp:730] Stack trace of the failed collective:
    #0 all_reduce from /usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py:2937
    #1 step from /srv/job/train.py:41

(torch 2.6 to 2.13 with a flight recorder.) The frames bear no label; they are the lines right below the head.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddx_tools.logs.event import Event
from ddx_tools.model import Location
from ddx_tools.parsers.nccl.watchdog_lines import speaker
from ddx_tools.parsers.python.user_frames import is_user_file

_HEAD, _FRAME = "torch_watchdog_stack", "torch_watchdog_stack_frame"
_LIMIT = 8


class Places:
    """The user's line of each rank's failed collective."""

    def __init__(self, events: list[Event]) -> None:
        self._found: dict[tuple[int, int], Location] = {}
        head: Event | None = None
        last = 0
        for event in events:
            code, line = event.row["code"], event.row["source_line"]
            if code == _HEAD:
                head, last = event, line
            elif code == _FRAME and head and event.row["source"] == head.row["source"]:
                if line - last > 1 and event.details.get("stream") != head.details.get("stream"):
                    head = None
                    continue
                last = line
                self._take(head, event)

    def _take(self, head: Event, frame: Event) -> None:
        rank = speaker(head.details.get("quote") or "").job_rank
        if rank is None and len(head.ranks) == 1:
            rank = head.ranks[0]
        details = frame.details
        if rank is not None and is_user_file(details["file"]):
            place = Location(file=details["file"], line=int(details["line"]), function=details["function"])
            self._found.setdefault((rank, head.attempt), place)

    def of(self, ranks: Iterable[int], attempt: int) -> list[Location]:
        """The distinct places of some ranks."""
        places = (self._found.get((rank, attempt)) for rank in sorted(ranks))
        return list({(place.file, place.line): place for place in places if place}.values())[:_LIMIT]
