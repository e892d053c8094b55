"""The progress that a job's own output shows, read from the copy of the output.

Of long output, only the end is read: enough to see step numbers move, at a bounded cost.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ddx_tools.parsers.logs.step_lines import StepFacts, step_facts

_MOST_BYTES = 32 << 10
_MOST_LINES = 60
_LIMIT_IN_MESSAGE = re.compile(rb"(?:Timeout\(ms\)=|Timed out waiting )(\d{3,9})")
"""The timeout of a collective, in messages of ProcessGroupNCCL's watchdog and Gloo's unbound buffer."""


class PrintedProgress:
    """Reads a launcher's log incrementally."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._numbers: dict[str, tuple[object, ...]] = {}
        """For each shape of line, the numbers last seen in it."""
        self.last_step: int | None = None
        self.has_steps = False
        """Whether any line so far counted steps or work."""
        self.limit_s: float | None = None
        """The shortest timeout of a collective that a message named."""

    def look(self) -> tuple[bool, bool]:
        """Read what the job has printed since the last call.

        Return two flags: whether there is new output, and whether step numbers or counted work advanced in it.
        """
        data = self._new_bytes()
        for found in _LIMIT_IN_MESSAGE.finditer(data):
            self.limit_s = min(int(found[1]) / 1000, self.limit_s or float("inf"))
        moved = False
        for line in re.split(rb"[\r\n]+", data)[-_MOST_LINES:]:
            facts = step_facts(line.decode(errors="replace")) if line else None
            if facts and self._moved(facts):
                moved = True
        return bool(data), moved

    def _new_bytes(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                begin = self._offset if size >= self._offset else 0
                file.seek(max(begin, size - _MOST_BYTES))
                self._offset = size
                return file.read(_MOST_BYTES)
        except OSError:
            return b""

    def _moved(self, facts: StepFacts) -> bool:
        self.has_steps = True
        numbers = (facts.epoch, facts.step, facts.batch, facts.rank)
        moved = self._numbers.get(facts.shape) != numbers
        self._numbers[facts.shape] = numbers
        if facts.step is not None and not facts.own_work:
            self.last_step = facts.step
        return moved
