"""The line protocol from a host to the machine that asks; it survives login banners, carriage returns and gateways.

    ddx1 hello {"host", "clock_s", "ddx"}          as soon as the program runs
    ddx1 data <base64>                             a piece of the next parcel
    ddx1 rows                                      the pieces so far are the host's rows, complete
    ddx1 part                                      the pieces so far are a packed bundle, complete
    ddx1 end {"clock_s", "jobs", "left_out", "error"}

Any other line comes from another program and is skipped.
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
    """Return one line of the host protocol, as bytes: the tag `ddx1`, the kind, and the facts as JSON."""
    return _TAG + f"{kind} {json.dumps(facts)}\n".encode()


def parcel(kind: str, stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines that carry a packed bundle (`part`) or `rows`."""
    while piece := stream.read(_PIECE_BYTES):
        yield _TAG + b"data " + base64.b64encode(piece) + b"\n"
    yield _TAG + f"{kind} {{}}\n".encode()


class Inbox:
    """Receives the lines of one host; packed parcels go to files `<stem>-<n>`, at most `most_bytes` in total."""

    def __init__(self, stem: Path, most_bytes: int) -> None:
        self.hello: dict[str, Any] | None = None
        self.end: dict[str, Any] | None = None
        self.rows: list[Path] = []
        self.parts: list[Path] = []
        """Rows and bundles that arrived complete."""
        self.size_bytes = 0
        self.noise = b""
        """The first line that was not in our format."""
        self.garbled = False
        self._stem = stem
        self._most_bytes = most_bytes

    def take(self, line: bytes) -> None:
        """Process one line received from the host, given without its line end.

        Only the first line in another format is kept, as `noise`. After a malformed protocol line, the rest is ignored.
        """
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
                raise ValueError("more than allowed")
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
