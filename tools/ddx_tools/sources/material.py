"""A file from the user, and the bytes of a text."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ddx_tools.model.errors import HostError
from ddx_tools.model.files.suffixes import NO_TEXT, PROGRAM, suffix
from ddx_tools.parsers.lines.stream import Consumer, LinesRead
from ddx_tools.sources.kinds import plain_name
from ddx_tools.sources.regular_files import open_regular

_PROGRAMS_DEEP, _PROGRAM_BYTES = 1, 64 << 10
"""A short program beside the logs may be the job's; one further down belongs to a library or a whole project."""


@dataclass
class Material:
    """A file from the user, or a member of an archive."""

    path: str
    """Its name, which also opens it: `/data/job.tar!logs/rank3.log`."""
    named: bool = False
    """Whether the user named it explicitly."""
    depth: int = 0
    """The number of directories between it and the named path."""
    size_bytes: int | None = None
    written_ns: int | None = None
    kinds: set[str] = field(default_factory=set)
    """Kinds of `TextKind` and of `ddx_tools.model.files.kinds.FileKind`."""
    head: bytes = b""
    """For a text, all of it or, if it is `cut`, its beginning. For other files, enough to identify them."""
    tail: bytes = b""
    """For a cut text, enough of its end to identify it."""
    cut: bool = False
    damaged: bool = False
    """Whether its end is unknown because it could not be unpacked that far."""
    source: str = ""
    """Its name in evidence."""
    why_not: str | None = None
    """Why it was not read, or not completely, in words."""
    error: HostError | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The path for recognising names: archives appear as folders, without suffixes of compression."""
        return plain_name(self.path)

    @property
    def may_tell(self) -> bool:
        """Whether the file may be a text about the job, judged by its name.

        Any file that the user named may be one. Otherwise data files are excluded, and so are programs that are large
        or deep in folders.
        """
        if self.named or suffix(self.name) not in NO_TEXT:
            return True
        return (
            suffix(self.name) == PROGRAM and self.depth <= _PROGRAMS_DEEP and (self.size_bytes or 0) <= _PROGRAM_BYTES
        )


@dataclass(eq=False)
class TextPart:
    """A part of a text: all of it or, if a bundle kept no more, its beginning or its end."""

    source: str
    data: bytes
    file: str | None = None
    """The file on this machine that holds the bytes, if they are not in memory."""
    wanted_by: list[Consumer] = field(default_factory=list)
    """The consumers that receive its lines."""
    reading: LinesRead | None = None
    """The state of reading its lines."""

    def open(self) -> BinaryIO:
        """Open the bytes as a stream. Raises OSError."""
        return io.BytesIO(self.data) if self.file is None else io.BufferedReader(open_regular(Path(self.file)))
