"""A file as the user passed it, and the bytes of a text."""

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
"""A short program that lies beside the logs may be the job's; what is deeper is a library, or a whole project."""


@dataclass
class Material:
    """A file as it was passed in, or a member of an archive."""

    path: str
    """What it is called, and opened by: `/data/job.tar!logs/rank3.log`."""
    named: bool = False
    """Somebody named it himself."""
    depth: int = 0
    """In how many directories below what was named it lies."""
    size_bytes: int | None = None
    written_ns: int | None = None
    kinds: set[str] = field(default_factory=set)
    """Of `Kind`, and of `ddx_tools.model.files.kinds.Kind`."""
    head: bytes = b""
    """Of a text: all of it or, if it is `cut`, its beginning. Of other files as much as tells their kind."""
    tail: bytes = b""
    """Of a text that is cut: its end, as much as tells what it holds."""
    cut: bool = False
    damaged: bool = False
    """Its end is not known: what was packed could not be unpacked as far as that."""
    source: str = ""
    """What evidence names."""
    why_not: str | None = None
    """Why it was not read, or not whole; in words."""
    error: HostError | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The path for whoever reads names: archives as folders, without what packing added."""
        return plain_name(self.path)

    @property
    def may_tell(self) -> bool:
        """It may be a text about the job: nobody reads data and programs, unless one is named."""
        if self.named or suffix(self.name) not in NO_TEXT:
            return True
        return (
            suffix(self.name) == PROGRAM and self.depth <= _PROGRAMS_DEEP and (self.size_bytes or 0) <= _PROGRAM_BYTES
        )


@dataclass(eq=False)
class TextPart:
    """Bytes of a text: all of them or, of one of which a bundle kept no more, its beginning or its end."""

    source: str
    data: bytes
    file: str | None = None
    """The file on this machine that holds the bytes, where they are not carried along."""
    wanted_by: list[Consumer] = field(default_factory=list)
    """Those who are to be given its lines."""
    reading: LinesRead | None = None
    """How far its lines were read."""

    def open(self) -> BinaryIO:
        """The bytes as a stream. Raises OSError."""
        return io.BytesIO(self.data) if self.file is None else io.BufferedReader(open_regular(Path(self.file)))
