"""Separates tracebacks that several processes wrote at once, line by line, without labels.

Ranks that fail together mix their lines, mostly whole ones: CPython writes them one by one. A line goes to the
traceback that it continues, if that can be determined:

- tracebacks that are equal so far are interchangeable;
- a frame follows the line of code that calls its function;
- the line of code below a frame is the same as below the same frame elsewhere;
- an exception follows the line of code that raises it.

If a line could continue two tracebacks, neither gets it: both keep the frames that are certainly theirs, and an
exception that may belong to either becomes a traceback of its own with their shared frames.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ddx_tools.parsers.python.traceback_parts import Traceback, TracebackFrame

_STRAND_LIMIT = 256
_FRAME_LIMIT = 200
_SILENCE_LINES = 400
_MODULE = "<module>"
_RAISE = re.compile(r"raise [A-Z]\w{0,100}\(")
_RUNNERS = ("_run_code", "_call_with_frames_removed")
"""The functions in runpy and importlib that run a module."""
_NAME_OF_EXCEPTION = re.compile(r"(?:Error|Exception|Exit|Interrupt|Iteration|Timeout|Empty|Full|Cancelled|Warning)$")

_History = tuple[TracebackFrame, ...]


class Braid:
    """Overlapping tracebacks of one stream."""

    def __init__(self, first: Traceback) -> None:
        self._open = [first]
        self._lost: set[int] = set()
        """The ids of tracebacks whose further lines can no longer be determined."""
        self._done: list[Traceback] = []
        self._unplaced = 0
        """The number of exceptions that may belong to any open traceback."""
        self._codes: dict[tuple[str, int], str] = {(f.file, f.line): f.code for f in first.frames if f.code}
        self._last_number = first.last_line

    def begins(self, traceback: Traceback) -> None:
        """Add a new traceback, whose header line appeared while other tracebacks were still unfinished."""
        self._last_number = traceback.line
        if len(self._open) < _STRAND_LIMIT:
            self._open.append(traceback)

    @property
    def is_over(self) -> bool:
        """Whether every traceback has ended."""
        return len(self._open) <= self._unplaced

    def is_silent(self, number: int) -> bool:
        """Whether line `number` is so far below the last traceback line that none will follow."""
        return number - self._last_number > _SILENCE_LINES

    @property
    def issues_a_warning(self) -> bool:
        """Whether an open traceback is at a line that issues a warning, which `-W error` makes an exception."""
        return any("warn" in frame.code for traceback in self._open for frame in traceback.frames[-1:])

    def finished(self) -> list[Traceback]:
        """Return all tracebacks, unfinished ones last."""
        return [*self._done, *(traceback for traceback in self._open if id(traceback) not in self._lost)]

    def frame(self, number: int, frame: TracebackFrame) -> None:
        """Append a frame, read from line `number`, to the open traceback that it continues.

        If it could continue several different ones, none gets it.
        """
        self._last_number = number
        chosen = self._chosen(self._open, lambda history: _follows(frame, history), certain=3)
        if chosen and len(chosen.frames) < _FRAME_LIMIT:
            chosen.frames.append(frame)

    def code(self, number: int, text: str) -> None:
        """Attach a line of source code to the open traceback whose last frame still lacks its code.

        `number` is the line's number. If the text could belong to several different frames, none gets it.
        """
        self._last_number = number
        waiting = [traceback for traceback in self._open if traceback.frames and not traceback.frames[-1].code]

        def fits(history: _History) -> int:
            known = self._codes.get((history[-1].file, history[-1].line))
            return 1 if known is None else 2 * (known == text)

        chosen = self._chosen(waiting, fits, certain=2, key=lambda traceback: traceback.frames[-1:])
        if chosen:
            last = chosen.frames[-1]
            chosen.frames[-1] = TracebackFrame(last.file, last.line, last.function, text)
            self._codes[last.file, last.line] = text

    def exception(self, number: int, raw: str, name: str, message: str) -> None:
        """End the open traceback to which an exception line belongs, and store the exception in it.

        `number` and `raw` are the line's number and text. If it could belong to several, a new traceback with their
        shared frames gets it. Lines that only resemble an exception are ignored.
        """
        self._last_number = number
        candidates = [traceback for traceback in self._open if traceback.frames]
        # "Loss: 0.5" also looks like one.
        is_named = _NAME_OF_EXCEPTION.search(name) or any(_names(item.frames[-1].code, name) for item in candidates)
        if not candidates or not is_named:
            return
        chosen = self._chosen(candidates, lambda history: _raises(name, history), certain=3)
        if chosen:
            self._open = [traceback for traceback in self._open if traceback is not chosen]
        else:
            chosen = _shared(candidates)
            self._unplaced += 1
        chosen.exception, chosen.message = name, message
        chosen.raw, chosen.raw_line, chosen.last_line = raw, number, number
        self._done.append(chosen)

    def _chosen(
        self,
        candidates: list[Traceback],
        fit: Callable[[_History], int],
        certain: int,
        key: Callable[[Traceback], Iterable[TracebackFrame]] = lambda traceback: traceback.frames,
    ) -> Traceback | None:
        """The first of the tracebacks that the line fits best; None if these differ, and then they are lost.

        `certain`: a fit this good rules out all others, even lost ones.
        """
        fits = {id(traceback): fit(tuple(traceback.frames)) for traceback in candidates}
        best = max(fits.values(), default=0)
        if best <= 0:
            return None
        likely = [traceback for traceback in candidates if fits[id(traceback)] == best]
        unsure = best < certain and any(id(traceback) in self._lost for traceback in self._open)
        differ = len({tuple(key(traceback)) for traceback in likely}) > 1
        if unsure or differ or any(id(traceback) in self._lost for traceback in likely):
            self._lost.update(id(traceback) for traceback in likely)
            return None
        return likely[0]


def _shared(candidates: list[Traceback]) -> Traceback:
    """The shared frames of tracebacks, for an exception that may belong to any of them."""
    shared = Traceback(min(traceback.line for traceback in candidates), is_mixed=True)
    for frames in zip(*(traceback.frames for traceback in candidates), strict=False):
        if len({(frame.file, frame.line) for frame in frames}) > 1:
            break
        shared.frames.append(frames[0])
    return shared


def _follows(frame: TracebackFrame, history: _History) -> int:
    if not history:
        return 2 + (frame.function == _MODULE)
    last = history[-1]
    if (last.file, last.line) == (frame.file, frame.line) or _awaits_code(last):
        return 1
    if frame.function == _MODULE:
        return 4 if last.function in _RUNNERS or "exec(" in last.code else 1
    return 2 + 2 * _names(last.code, frame.function)


def _raises(exception: str, history: _History) -> int:
    last = history[-1]
    if _names(last.code, exception):
        return 3
    return 1 if _awaits_code(last) or _RAISE.match(last.code) else 2


def _awaits_code(frame: TracebackFrame) -> bool:
    """Whether a line of code should follow the frame: CPython prints it for a file that it can read."""
    return not frame.code and not frame.file.startswith("<")


def _names(code: str, name: str) -> bool:
    return bool(code) and re.search(rf"\b{re.escape(name.rpartition('.')[2])}\b", code) is not None
