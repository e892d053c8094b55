"""What a rank was in when its collective was taken from it: the frames of a traceback that is only a consequence.

The watchdog of one rank or of all aborts the communicator; then a call that waits raises ("NCCL communicator was
aborted"), or the peers' connections close. Such an exception is no failure of its own, but its frames are a stack of
that moment, and are read by the rules for stacks (`knowledge/frames.yaml`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ddx_tools.logs.event import Event
from ddx_tools.logs.raised import is_consequence
from ddx_tools.model import Location
from ddx_tools.parsers.python.frame_classes import frame_rules
from ddx_tools.parsers.python.pyspy_json import Frame


@dataclass(frozen=True)
class RankContext:
    """Where one rank was."""

    contexts: frozenset[str]
    user_functions: tuple[str, ...]
    """Of the program's own frames, innermost first."""
    place: Location | None


class RankContexts:
    """Contexts by rank and attempt, of ranks whose traceback follows from the end of a collective."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._found: dict[tuple[int, int], RankContext] = {}
        for event in events:
            if event.kind == "traceback" and len(event.ranks) == 1 and is_consequence(event):
                self._found.setdefault((event.ranks[0], event.attempt), _context(event))

    def own(self, ranks: Iterable[int], peers: Iterable[int], attempt: int) -> RankContext | None:
        """What these ranks were in and their peers, as far as they told, were not; None if none of them told."""
        told = [found for rank in sorted(ranks) if (found := self._found.get((rank, attempt)))]
        if not told:
            return None
        others = [found for rank in peers if (found := self._found.get((rank, attempt)))]
        shared = frozenset[str]().union(*(other.contexts for other in others))
        functions = tuple(dict.fromkeys(name for found in told for name in found.user_functions))
        contexts = frozenset[str]().union(*(found.contexts for found in told))
        return RankContext(contexts - shared, functions, told[0].place)

    def places(self, ranks: Iterable[int], attempt: int) -> list[Location]:
        """The distinct user lines of some ranks."""
        found = (self._found.get((rank, attempt)) for rank in sorted(ranks))
        return list({(at.place.file, at.place.line): at.place for at in found if at and at.place}.values())


def _context(event: Event) -> RankContext:
    frames = [_frame(text) for text in reversed(event.said[-1].frames)]
    functions = [frame.bare_function for frame in frames if frame.is_user]
    contexts = frame_rules().contexts(frames, functions)
    return RankContext(frozenset(contexts), tuple(functions), event.location)


def _frame(text: str) -> Frame:
    """One frame as `log_events.frames` holds it: `file:line function`."""
    place, _, function = text.partition(" ")
    file, _, line = place.rpartition(":")
    return Frame(file, int(line) if line.isdecimal() and len(line) < 10 else 0, function)
