"""The parts of a traceback."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddx_tools.model.user_frames import is_user_file


@dataclass(frozen=True)
class TracebackFrame:
    """One frame of a printed traceback."""

    file: str
    line: int
    function: str
    code: str = ""


@dataclass
class Traceback:
    """One exception with the frames it passed through, outermost first."""

    line: int
    """Its first line in the log, from 1."""
    last_line: int = 0
    raw: str = ""
    """The line that names the exception, verbatim."""
    raw_line: int = 0
    exception: str | None = None
    """The exception's name, qualified as printed; None if the log ends before it."""
    message: str = ""
    frames: list[TracebackFrame] = field(default_factory=list)
    is_cut: bool = False
    """Whether the header, and perhaps outer frames, are missing."""
    relation: str | None = None
    """How it follows from the previous exception: `cause` (raise … from) or `context` (while handling it)."""
    is_mixed: bool = False
    """Whether it was mixed with others, line by line, so that only these frames are known to be its own."""
    before: list[Traceback] = field(default_factory=list)
    """The exceptions it follows from, oldest first."""

    @property
    def user_frame(self) -> TracebackFrame | None:
        """The innermost frame in the user's program; the innermost frame of all if there is none."""
        mine = [frame for frame in self.frames if is_user_file(frame.file)] or self.frames
        return mine[-1] if mine else None

    @property
    def origin(self) -> Traceback:
        """The oldest exception of the chain."""
        return self.before[0] if self.before else self
