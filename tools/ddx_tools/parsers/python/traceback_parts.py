"""What a traceback consists of."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddx_tools.model.user_frames import is_user_file


@dataclass(frozen=True)
class TracebackFrame:
    """One frame, as a traceback prints it."""

    file: str
    line: int
    function: str
    code: str = ""


@dataclass
class Traceback:
    """One exception with the frames it came through, outermost first."""

    line: int
    """First line in the log, 1-based."""
    last_line: int = 0
    raw: str = ""
    """The line that names the exception, verbatim."""
    raw_line: int = 0
    exception: str | None = None
    """Qualified as printed; None if the log ends before it."""
    message: str = ""
    frames: list[TracebackFrame] = field(default_factory=list)
    is_cut: bool = False
    """The header, and with it perhaps outer frames, is missing."""
    relation: str | None = None
    """How it follows from the one before: `cause` (raise … from) or `context` (while handling it)."""
    is_mixed: bool = False
    """It was written among others, line by line, and which frames beyond these are its own cannot be told."""
    before: list[Traceback] = field(default_factory=list)
    """The exceptions it follows from, oldest first."""

    @property
    def user_frame(self) -> TracebackFrame | None:
        """The innermost frame of the user's program; the innermost of all if none is."""
        mine = [frame for frame in self.frames if is_user_file(frame.file)] or self.frames
        return mine[-1] if mine else None

    @property
    def origin(self) -> Traceback:
        """The oldest exception of the chain."""
        return self.before[0] if self.before else self
