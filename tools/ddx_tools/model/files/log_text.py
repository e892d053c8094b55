"""Text of a log out of bytes, block by block: any encoding, any line ends, without what only steers a terminal.

A block is whole lines. What a terminal would show one over the other (progress bars end in a carriage return) are
pieces of one line; they keep its number.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

BLOCK_BYTES = 4 << 20
HEAD_BYTES = 256 << 10
"""So much of the beginning tells what stands before the lines, and where they were wrapped."""
LINE_BYTES = 64 << 10
"""What is longer than this is cut: no message is."""

_ANSI = re.compile(
    rb"\x1b(?:\[[0-9;?:]{0,40}[ -/]{0,4}[@-~]|\][^\x07\x1b\r\n]{0,200}(?:\x07|\x1b\\)|[()][A-Z0-9]|[@-Z\\-_])"
)
CONTROL = bytes(set(range(32)) - {9, 10, 13}) + b"\x7f"
"""Left out of what people read."""
# C1 controls, what has no width, and what turns the direction of writing; as UTF-8 begins them.
_INVISIBLE_LEAD = re.compile(rb"\xc2[\x80-\x9f]|\xe2\x80|\xe2\x81|\xef\xbb\xbf")
_INVISIBLE = re.compile("[\x80-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
# From the beginning of a line alone: else each byte of a line that is nearly too long is tried as one.
_ENDLESS = re.compile(rb"(?<![^\r\n])[^\r\n]{%d,}" % LINE_BYTES)
DIGITS_AS_ZERO = bytes.maketrans(b"123456789", b"000000000")
"""For `bytes.translate`: most lines of a log differ in numbers only."""
DOCKER = b'{"log":"'
_BOMS = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


class Readable(Protocol):
    """A file, or what unpacks one."""

    def read(self, count: int, /) -> bytes:
        """The next bytes; fewer than `count` only at the end."""


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole lines."""

    number: int
    """Of the first line, 1-based."""
    data: bytes
    offset: int | None = None
    """Where it begins in the file; None if its text is not the bytes of the file (UTF-16, Docker's JSON)."""
    too_long: int = 0
    """How many of its lines were cut to `LINE_BYTES`."""

    def cleaned(self) -> TextBlock:
        """The same lines in UTF-8, as far as the log is, with line ends `\\n` and pieces of a line parted by `\\r`."""
        data, too_long = _clean(self.data)
        return TextBlock(self.number, data, self.offset, too_long)


def read_blocks(stream: Readable, block_bytes: int = BLOCK_BYTES, number: int = 1) -> Iterator[TextBlock]:
    """The text of a log that begins with line `number`, not yet cleaned. Any bytes will do; memory is bounded."""
    skipping = False
    rest = b""
    text = _Utf8(stream, block_bytes)
    for data in text.pieces():
        if skipping:  # of a line that goes on through whole blocks only the beginning is kept
            end = data.find(b"\n")
            if end < 0:
                continue
            data, skipping = data[end:], False
        offset = text.offset_before(len(rest) + len(data))
        if end := data.rfind(b"\n") + 1:
            whole, rest = b"".join((rest, memoryview(data)[:end])), data[end:]
        else:
            data = rest + data
            end = data.rfind(b"\r", 0, -1) + 1
            if not end and len(data) >= block_bytes:
                data, end, skipping = data[:LINE_BYTES], LINE_BYTES, True
            whole, rest = data[:end], data[end:]
        if whole:
            yield TextBlock(number, whole, offset)
            number += whole.count(b"\n")
    if rest:
        yield TextBlock(number, rest, text.offset_before(len(rest)))


def encoding_of(head: bytes) -> str | None:
    """`utf-16-le` or `utf-16-be`, as PowerShell redirects output; None for what ASCII is a part of."""
    for bom, name in _BOMS:
        if head.startswith(bom):
            return name
    sample = head[:4096]
    zeros = [sample[at::2].count(0) for at in (0, 1)]
    if len(sample) >= 64 and max(zeros) > 0.4 * len(sample) and min(zeros) < 0.02 * len(sample):
        return "utf-16-le" if zeros[1] > zeros[0] else "utf-16-be"
    return None


def as_utf8(data: bytes) -> bytes:
    """The same text in UTF-8, if its encoding is recognised."""
    encoding = encoding_of(data)
    return data.decode(encoding, "replace").encode("utf-8", "replace") if encoding else data


class _Utf8:
    """Bytes of a file as UTF-8, and how far they are those of the file."""

    def __init__(self, stream: Readable, block_bytes: int) -> None:
        self._stream, self._block_bytes = stream, block_bytes
        self._read = 0
        self._as_it_is = True

    def offset_before(self, count: int) -> int | None:
        """Where in the file the last `count` bytes of what was given so far begin."""
        return self._read - count if self._as_it_is else None

    def pieces(self) -> Iterator[bytes]:
        head = self._stream.read(self._block_bytes)
        encoding = encoding_of(head)
        decoder = codecs.getincrementaldecoder(encoding)("replace") if encoding else None
        docker = head.startswith(DOCKER)
        self._as_it_is = not (decoder or docker)
        data, rest = head, b""
        while data:
            self._read += len(data)
            if decoder:
                data = decoder.decode(data).encode("utf-8", "replace")
            if docker:
                data = rest + data
                end = data.rfind(b"\n") + 1
                data, rest = _undocker(data[:end]), data[end:]
            yield data
            data = self._stream.read(self._block_bytes)
        if rest:
            yield _undocker(rest)


def _undocker(data: bytes) -> bytes:
    """Lines out of Docker's JSON files (moby, daemon/logger/jsonfilelog): `{"log":"…\\n","stream":…,"time":…}`."""
    return b"".join(_docker_line(line) for line in data.splitlines(keepends=True))


def _docker_line(line: bytes) -> bytes:
    try:
        entry = json.loads(line)
        text = str(entry["log"]).replace("\n", "") + "\n"
        return f"{entry.get('time', '')} {text}".encode("utf-8", "replace")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return line


def without_colours(data: bytes) -> bytes:
    """Without the sequences that a terminal takes for colours; the number of lines stays."""
    return _ANSI.sub(b"", data) if b"\x1b" in data else data


def _clean(data: bytes) -> tuple[bytes, int]:
    """Without colours, and how many lines were cut; the number of lines stays."""
    too_long = 0
    if b"\r" in data and b"\r\n" in data:
        data = data.replace(b"\r\n", b"\n")
    data = without_colours(data)
    if not data.isascii() and _INVISIBLE_LEAD.search(data):
        data = _INVISIBLE.sub("", data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    if _has_endless(data):  # of NULs, say, where a log was cut while its writer kept its place
        data, too_long = _ENDLESS.subn(lambda match: match[0][:LINE_BYTES], data.translate(None, CONTROL))
    return data, too_long


def _has_endless(data: bytes) -> bool:
    """Cheap: a line is only too long if no end stands in one of the stretches that it must cover."""
    step = LINE_BYTES // 2
    return any(
        data.find(b"\n", at, at + step) < 0 and data.find(b"\r", at, at + step) < 0
        for at in range(0, len(data) - step, step)
    )
