"""Reads faulthandler's stacks of a crashing interpreter (CPython 3.8 to 3.14: pylifecycle.c, traceback.c).

    Fatal Python error: Segmentation fault

    Thread 0x00007f1e (most recent call first):        3.14: Thread 0x00007f1e [name] (most recent …
      File "train.py", line 76 in segfaults
      …
    Current thread 0x00007f1d (most recent call first):
      <no Python frame>

    Extension modules: numpy._core._multiarray_umath, …

Threads come newest first, so the main thread is the last. Frames are innermost first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ddx_tools.model.user_frames import is_user_file
from ddx_tools.parsers.logs.log_lines import LogLine
from ddx_tools.parsers.python.traceback_parts import TracebackFrame

_START = re.compile(r"Fatal Python error: (.{0,300})")
_THREAD = re.compile(r"(Current thread|Thread) 0x([0-9a-f]{1,16})(?: \[([^\]]{0,100})\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "([^"]{1,1000})", line (\d{1,9}) in (.{1,300})$')
_SIGNALS = {  # Modules/faulthandler.c; Py_FatalError also ends with "Aborted"
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Floating-point exception": "SIGFPE",
    "Floating point exception": "SIGFPE",
}
WAKING = ("Fatal Python error: ",)
"""RE2 expressions; every line that begins a block matches one of them."""
_THREAD_LIMIT = 128
_FRAME_LIMIT = 200


@dataclass
class FatalThread:
    """One thread of a fatal-error report; frames innermost first."""

    thread_id: int
    is_current: bool
    name: str = ""
    frames: list[TracebackFrame] = field(default_factory=list)


@dataclass
class FatalStack:
    """The fatal-error report of one interpreter."""

    line: int
    reason: str
    raw: str
    threads: list[FatalThread] = field(default_factory=list)

    @property
    def signal(self) -> str | None:
        """The signal that killed the interpreter, if any."""
        return _SIGNALS.get(self.reason)

    @property
    def main_thread(self) -> FatalThread | None:
        """The thread that runs the program: the one that started in a module, else the last."""
        with_program = [t for t in self.threads if t.frames and t.frames[-1].function == "<module>"]
        candidates = with_program or self.threads
        return candidates[-1] if candidates else None

    @property
    def user_frame(self) -> TracebackFrame | None:
        """The main thread's innermost frame in the user's program."""
        frames = self.main_thread.frames if self.main_thread else []
        return next((frame for frame in frames if is_user_file(frame.file)), None)


class FatalStackReader:
    """Collects the blocks of one stream, line by line."""

    def __init__(self) -> None:
        self._current: FatalStack | None = None

    @property
    def is_open(self) -> bool:
        """Whether the reader is inside a "Fatal Python error" block, so that the next line may belong to it."""
        return self._current is not None

    def feed(self, line: LogLine) -> tuple[bool, FatalStack | None]:
        """Take one line; return whether it belongs to a block, and the block that it ended."""
        if line.text.startswith("Fatal") and (start := _START.match(line.text)):
            finished, self._current = self._current, FatalStack(line.number, start[1], line.raw)
            return True, finished
        if self._current is None:
            return False, None
        if self._continues(self._current, line.text):
            return True, None
        return False, self.close()

    def close(self) -> FatalStack | None:
        """End the block, because the log ends or other text begins; return it, if any."""
        finished, self._current = self._current, None
        return finished

    def _continues(self, block: FatalStack, text: str) -> bool:
        if not text.strip() or text.startswith(("Python runtime state:", "  <", "  ...", "...", "Extension modules:")):
            return True
        if thread := _THREAD.match(text):
            if len(block.threads) < _THREAD_LIMIT:
                block.threads.append(FatalThread(int(thread[2], 16), thread[1] != "Thread", thread[3] or ""))
            return True
        frame = _FRAME.match(text)
        if frame and block.threads:
            frames = block.threads[-1].frames
            if len(frames) < _FRAME_LIMIT:
                frames.append(TracebackFrame(frame[1], int(frame[2]), frame[3]))
            return True
        return False
