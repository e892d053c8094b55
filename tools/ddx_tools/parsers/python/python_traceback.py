"""Reads Python tracebacks in the lines of one stream (CPython 3.8 to 3.14: traceback.py, traceback.c).

Traceback (most recent call last):            may be cut off at the top of a log
  File "train.py", line 12, in main
    step(batch)
    ~~~~^^^^^^^                               3.11 and later
  [Previous line repeated 996 more times]
pkg.Error: message                            may continue over several lines; notes look the same

The above exception was the direct cause of the following exception:
During handling of the above exception, another exception occurred:

An exception that torch re-raises for a worker (torch 2.13, torch/_utils.py ExceptionWrapper) is read as one exception,
with the frames of both processes:

ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ddx_tools.parsers.logs.log_lines import LogLine
from ddx_tools.parsers.python.braided_tracebacks import Braid
from ddx_tools.parsers.python.traceback_parts import Traceback, TracebackFrame

HEADER = "Traceback (most recent call last):"
ASIDE = re.compile(r"Exception in thread |Exception ignored (?:in|on)\b|Exception ignored in:")
"""A line above a traceback that does not end its process."""
WAKING = (
    r"Traceback \(most recent call last\):",
    r'  File "',
    "Error: ",
    "Exception: ",
    "Exception in thread ",
    "Exception ignored ",
)
"""RE2 expressions; every line that may begin a traceback matches one of them."""
_FRAME_LIMIT = 1_100
_FRAMES_KEPT = 200
_MESSAGE_LINES = 40
_MESSAGE_CHARS = 4_000
_CHAIN_LIMIT = 20
_CODE_CHARS = 500
_JUNK_LIMIT = 12

_FRAME = re.compile(r'( {0,200})File "([^"]{1,1000})", line (\d{1,9})(?:, in (.{1,300}))?$')
_MARKERS = frozenset(" ~^")
# `KeyError`, `torch.OutOfMemoryError`, `socket.timeout`, `train.main.<locals>.Stop`; then a colon and the message.
_EXCEPTION = re.compile(
    r"(?!(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b)(?:(?=[A-Z_])|(?=[A-Za-z_]\w{0,100}\.))([\w.<>]{1,300})(?:: ?(.*))?$"
)
_BARE_EXCEPTION = re.compile(r"(?=[A-Za-z_])([\w.]{1,300}(?:Error|Exception)): (.*)$")
_RAISED_AGAIN = re.compile(r"Caught \w{1,100} [^\n]{1,200}$")
_RELATIONS = {
    "The above exception was the direct cause of the following exception:": "cause",
    "During handling of the above exception, another exception occurred:": "context",
}


class TracebackReader:
    """Collects the tracebacks of one stream, line by line."""

    def __init__(self) -> None:
        self._current: Traceback | None = None
        self._state = self._outside
        self._indent = 0
        self._junk = 0
        self._relation: str | None = None
        self._done: Traceback | None = None
        self._finished: list[Traceback] = []
        self._braid: Braid | None = None

    @property
    def is_open(self) -> bool:
        """Whether a traceback has begun, so that the next line may belong to it."""
        return self._current is not None or self._braid is not None

    @property
    def in_frames(self) -> bool:
        """Whether the reader is among the frames of a traceback, so that the next line may be source code."""
        return self._state in (self._in_frames, self._in_braid)

    def feed(self, line: LogLine) -> list[Traceback]:
        """Take one line; return the tracebacks that are now known to be complete."""
        self._state(line)
        return self._take_finished()

    def close(self) -> list[Traceback]:
        """End the log; return the open tracebacks as they are."""
        self._finish()
        return self._take_finished()

    def _take_finished(self) -> list[Traceback]:
        finished, self._finished = self._finished, []
        return finished

    # --- states ---------------------------------------------------------------------------------------------

    def _outside(self, line: LogLine) -> None:
        text = line.text
        column = text.find(HEADER)
        if column >= 0:
            self._begin(line, column if not text[:column].strip() else 0)
        elif text.startswith("  ") and (frame := _FRAME.match(text)):
            self._begin(line, len(frame[1]) - 2)
            self._current.is_cut = True  # type: ignore[union-attr]
            self._in_frames(line)
        elif bare := _bare_exception(text):
            self._begin(line, 0)
            self._current.is_cut = True  # type: ignore[union-attr]
            self._name(line, bare[1], bare[2])

    def _in_frames(self, line: LogLine) -> None:
        current = self._current
        assert current is not None
        text = self._dedented(line)
        if HEADER in text:
            self._another(line)
        elif frame := _FRAME.match(text):
            self._junk = 0
            if len(current.frames) < _FRAME_LIMIT:
                current.frames.append(TracebackFrame(frame[2], int(frame[3]), frame[4] or ""))
        elif text.startswith("    "):
            self._code(text)
        elif text.startswith("  "):
            pass  # such as the line of code below a warning, or "[Previous line repeated 990 more times]"
        elif (found := _EXCEPTION.match(text)) and not line.is_record and self._may_end(found[1]):
            self._name(line, found[1], found[2] or "")
        elif text.strip():
            self._junk += 1
            if self._junk > _JUNK_LIMIT:
                self._finish()
        current.last_line = line.number

    def _may_end(self, exception: str) -> bool:
        """Whether a line that looks like an exception ends the traceback: a warning does only if the code above issues
        one."""
        last = self._current.frames[-1:] if self._current else []
        return not exception.endswith("Warning") or any("warn" in frame.code for frame in last)

    def _in_braid(self, line: LogLine) -> None:
        braid = self._braid
        assert braid is not None
        text = self._dedented(line)
        if braid.is_silent(line.number):
            self._finish()
            self._outside(line)
            return
        if HEADER in text:
            braid.begins(Traceback(line.number, line.number, line.raw, line.number))
        elif frame := _FRAME.match(text):
            braid.frame(line.number, TracebackFrame(frame[2], int(frame[3]), frame[4] or ""))
        elif text.startswith("   ") and not _MARKERS.issuperset(text):
            braid.code(line.number, text.strip()[:_CODE_CHARS])
        elif (
            (found := _EXCEPTION.match(text))
            and not line.is_record
            and (braid.issues_a_warning or not found[1].endswith("Warning"))
        ):
            braid.exception(line.number, line.raw, found[1][:300], (found[2] or "")[:_MESSAGE_CHARS])
        if braid.is_over:
            self._finish()

    def _in_message(self, line: LogLine) -> None:
        current = self._current
        assert current is not None
        text = self._dedented(line)
        if text in _RELATIONS:
            self._chain(_RELATIONS[text])
        elif text == f"Original {HEADER}" and _RAISED_AGAIN.match(current.message):
            current.last_line = line.number
            self._state = self._in_frames
        elif not text.strip():
            self._state = self._after_blank
        elif self._is_foreign(line) or line.number - current.raw_line > _MESSAGE_LINES:
            self._finish()
            self._outside(line)
        else:
            current.message = f"{current.message}\n{text}"[:_MESSAGE_CHARS]
            current.last_line = line.number

    def _after_blank(self, line: LogLine) -> None:
        text = line.text.strip()
        if text in _RELATIONS:
            self._chain(_RELATIONS[text])
        elif text:
            self._finish()
            self._outside(line)

    def _before_next_in_chain(self, line: LogLine) -> None:
        if not line.text.strip():
            return
        self._state = self._outside
        self._outside(line)

    # --- steps ----------------------------------------------------------------------------------------------

    def _begin(self, line: LogLine, indent: int) -> None:
        self._current = Traceback(line.number, line.number, line.raw, line.number)
        self._indent = indent
        self._junk = 0
        if self._done is not None:
            self._current.before = [*self._done.before, self._done][-_CHAIN_LIMIT:]
            self._current.relation = self._relation
            self._done.before = []
            self._done = None
        self._state = self._in_frames

    def _another(self, line: LogLine) -> None:
        """Handle a header before the end of a traceback. In a labelled stream, the first one was cut off; otherwise two
        are mixed."""
        current = self._current
        if current is None or line.stream or current.before or line.number - current.last_line > 1:
            self._finish()
            self._outside(line)
            return
        self._current, self._braid, self._state = None, Braid(current), self._in_braid
        self._in_braid(line)

    def _dedented(self, line: LogLine) -> str:
        text = line.text
        return text[self._indent :] if not text[: self._indent].strip() else text

    def _code(self, text: str) -> None:
        frames = self._current.frames if self._current else []
        if frames and not frames[-1].code and not _MARKERS.issuperset(text) and not text.startswith("  ["):
            last = frames[-1]
            frames[-1] = TracebackFrame(last.file, last.line, last.function, text.strip()[:_CODE_CHARS])

    def _name(self, line: LogLine, exception: str, message: str) -> None:
        current = self._current
        assert current is not None
        current.exception, current.message = exception[:300], message[:_MESSAGE_CHARS]
        current.raw, current.raw_line, current.last_line = line.raw, line.number, line.number
        self._state = self._in_message

    def _is_foreign(self, line: LogLine) -> bool:
        """Whether a line after a message is certainly not part of it."""
        return bool(
            line.is_record
            or HEADER in line.text
            or _FRAME.match(line.text)
            or _bare_exception(line.text)
            or line.text.startswith(("=====", "terminate called", "Fatal Python error:", "srun: ", "slurmstepd: "))
        )

    def _chain(self, relation: str) -> None:
        self._done, self._current, self._relation = self._current, None, relation
        self._state = self._before_next_in_chain

    def _finish(self) -> None:
        alone = self._current or self._done
        ended = [alone] if alone else self._braid.finished() if self._braid else []
        self._current = self._done = self._braid = None
        self._state = self._outside
        half = _FRAMES_KEPT // 2
        for finished in ended:
            if len(finished.frames) > _FRAMES_KEPT:
                finished.frames = finished.frames[:half] + finished.frames[-half:]
            if finished.exception or finished.frames:
                self._finished.append(finished)


def _bare_exception(text: str) -> re.Match[str] | None:
    """Match `pkg.SomeError: message` by itself on a line, where frames were cut off or never printed."""
    return _BARE_EXCEPTION.match(text) if "Error: " in text or "Exception: " in text else None


def parse_traceback(text: str) -> Traceback | None:
    """Return the last traceback in a text, such as `py_callstack` of an elastic error file."""
    found = read_tracebacks(LogLine(number, line, line) for number, line in enumerate(text.split("\n"), 1))
    return found[-1] if found else None


def read_tracebacks(lines: Iterable[LogLine]) -> list[Traceback]:
    """Return all tracebacks of one stream."""
    reader = TracebackReader()
    found = [traceback for line in lines for traceback in reader.feed(line)]
    return found + reader.close()
