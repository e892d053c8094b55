"""What a host writes to the one that asks it: lines that survive login banners, carriage returns and gateways.

    ddx1 hello {"host", "clock_s", "ddx"}          as soon as the program runs
    ddx1 data <base64>                             a piece of what follows
    ddx1 rows                                      that was what the host made of what it saw, whole
    ddx1 part                                      that was a packed bundle, whole
    ddx1 end {"clock_s", "jobs", "left_out", "error"}

Any other line is somebody else's, and is passed over.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

_TAG = b"ddx1 "
_PIECE_BYTES = 24_000
_LONGEST_NOTE = 4_000


def note(kind: str, **facts: Any) -> bytes:
    """A line of facts."""
    return _TAG + f"{kind} {json.dumps(facts)}\n".encode()


def parcel(kind: str, stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a packed bundle (`part`) or of `rows`."""
    while piece := stream.read(_PIECE_BYTES):
        yield _TAG + b"data " + base64.b64encode(piece) + b"\n"
    yield _TAG + f"{kind} {{}}\n".encode()


class Inbox:
    """Takes the lines of one host; what it packed goes to files `<stem>-<n>`, never more than `most_bytes`."""

    def __init__(self, stem: Path, most_bytes: int) -> None:
        self.hello: dict[str, Any] | None = None
        self.end: dict[str, Any] | None = None
        self.rows: list[Path] = []
        self.parts: list[Path] = []
        """Rows and bundles that came whole."""
        self.size_bytes = 0
        self.noise = b""
        """The first that was no line of ours."""
        self.garbled = False
        self._stem = stem
        self._most_bytes = most_bytes

    def take(self, line: bytes) -> None:
        """One line, without its end."""
        kind, _, rest = line.removeprefix(_TAG).partition(b" ")
        if not line.startswith(_TAG):
            self.noise = self.noise or line[:200].strip()
        elif self.end is None and not self.garbled:
            try:
                self._take(kind, rest)
            except (ValueError, TypeError, binascii.Error):
                self.garbled = True

    def _take(self, kind: bytes, rest: bytes) -> None:
        if kind == b"data":
            piece = base64.b64decode(rest, validate=True)
            self.size_bytes += len(piece)
            if self.size_bytes > self._most_bytes:
                raise ValueError("more than was allowed")
            with self._next.open("ab") as file:
                file.write(piece)
        elif kind in (b"part", b"rows") and self._next.exists():
            (self.parts if kind == b"part" else self.rows).append(self._next)
        elif kind in (b"hello", b"end"):
            facts = json.loads(rest[:_LONGEST_NOTE])
            float(facts["clock_s"])
            if kind == b"hello":
                self.hello = facts
            else:
                self.end = facts

    @property
    def _next(self) -> Path:
        return self._stem.with_name(f"{self._stem.name}-{len(self.parts) + len(self.rows)}")
