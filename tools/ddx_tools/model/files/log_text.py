"""Decodes a log's bytes to text, block by block: any encoding or line ending, without terminal control sequences.

A block consists of whole lines. Text that a terminal would overwrite (progress bars end in a carriage return) forms
pieces of one line, which keep that line's number.
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
"""How much of the start is read to learn the lines' prefixes, and where lines were wrapped."""
LINE_BYTES = 64 << 10
"""Longer lines are cut; no message is this long."""

_ANSI = re.compile(
    rb"\x1b(?:\[[0-9;?:]{0,40}[ -/]{0,4}[@-~]|\][^\x07\x1b\r\n]{0,200}(?:\x07|\x1b\\)|[()][A-Z0-9]|[@-Z\\-_])"
)
CONTROL = bytes(set(range(32)) - {9, 10, 13}) + b"\x7f"
"""Control characters that are removed from displayed text."""
# First UTF-8 bytes of C1 controls, zero-width characters, and characters that change the writing direction.
_INVISIBLE_LEAD = re.compile(rb"\xc2[\x80-\x9f]|\xe2\x80|\xe2\x81|\xef\xbb\xbf")
_INVISIBLE = re.compile("[\x80-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
# Anchored at a line start: otherwise every byte of a line that is nearly too long would be tried.
_ENDLESS = re.compile(rb"(?<![^\r\n])[^\r\n]{%d,}" % LINE_BYTES)
DIGITS_AS_ZERO = bytes.maketrans(b"123456789", b"000000000")
"""Table for `bytes.translate`: most lines of a log differ only in numbers."""
DOCKER = b'{"log":"'
_BOMS = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


class Readable(Protocol):
    """A binary file, or a decompressor of one."""

    def read(self, count: int, /) -> bytes:
        """Read the next bytes; fewer than `count` only at the end."""


@dataclass(frozen=True, slots=True)
class TextBlock:
    """A block of whole lines of a log."""

    number: int
    """Number of the first line, 1-based."""
    data: bytes
    offset: int | None = None
    """Byte offset in the file; None if the text differs from the file's bytes (UTF-16, Docker's JSON)."""
    too_long: int = 0
    """How many of its lines were cut to `LINE_BYTES`."""

    def cleaned(self) -> TextBlock:
        """The same lines as UTF-8 where possible, with `\\n` line ends and pieces of a line separated by `\\r`."""
        data, too_long = _clean(self.data)
        return TextBlock(self.number, data, self.offset, too_long)


def read_blocks(stream: Readable, block_bytes: int = BLOCK_BYTES, number: int = 1) -> Iterator[TextBlock]:
    """Read a log in blocks of uncleaned lines, starting at line `number`. Accepts any bytes; memory is bounded."""
    skipping = False
    rest = b""
    text = _Utf8(stream, block_bytes)
    for data in text.pieces():
        if skipping:  # of a line that spans whole blocks, only the beginning is kept
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
    """Detect `utf-16-le` or `utf-16-be`, as PowerShell redirects output; None for encodings that contain ASCII."""
    for bom, name in _BOMS:
        if head.startswith(bom):
            return name
    sample = head[:4096]
    zeros = [sample[at::2].count(0) for at in (0, 1)]
    if len(sample) >= 64 and max(zeros) > 0.4 * len(sample) and min(zeros) < 0.02 * len(sample):
        return "utf-16-le" if zeros[1] > zeros[0] else "utf-16-be"
    return None


def as_utf8(data: bytes) -> bytes:
    """Convert text to UTF-8, if its encoding is recognised."""
    encoding = encoding_of(data)
    return data.decode(encoding, "replace").encode("utf-8", "replace") if encoding else data


class _Utf8:
    """Reads a file as UTF-8, and maps the text back to offsets in the file."""

    def __init__(self, stream: Readable, block_bytes: int) -> None:
        self._stream, self._block_bytes = stream, block_bytes
        self._read = 0
        self._as_it_is = True

    def offset_before(self, count: int) -> int | None:
        """File offset at which the last `count` bytes returned so far begin; None if unknown."""
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
    """Extract the lines from Docker's JSON logs (moby, daemon/logger/jsonfilelog): `{"log":"…\\n","time":…}`."""
    return b"".join(_docker_line(line) for line in data.splitlines(keepends=True))


def _docker_line(line: bytes) -> bytes:
    try:
        entry = json.loads(line)
        text = str(entry["log"]).replace("\n", "") + "\n"
        return f"{entry.get('time', '')} {text}".encode("utf-8", "replace")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return line


def without_colours(data: bytes) -> bytes:
    """Remove terminal colour sequences; the number of lines stays the same."""
    return _ANSI.sub(b"", data) if b"\x1b" in data else data


def _clean(data: bytes) -> tuple[bytes, int]:
    """Remove colours and cut overlong lines: (text, number of lines cut). The number of lines stays the same."""
    too_long = 0
    if b"\r" in data and b"\r\n" in data:
        data = data.replace(b"\r\n", b"\n")
    data = without_colours(data)
    if not data.isascii() and _INVISIBLE_LEAD.search(data):
        data = _INVISIBLE.sub("", data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    if _has_endless(data):  # of NULs, say, if a log was truncated while its writer kept its offset
        data, too_long = _ENDLESS.subn(lambda match: match[0][:LINE_BYTES], data.translate(None, CONTROL))
    return data, too_long


def _has_endless(data: bytes) -> bool:
    """Whether a line may be too long. Cheap: such a line covers a whole fixed-size stretch without a line end."""
    step = LINE_BYTES // 2
    return any(
        data.find(b"\n", at, at + step) < 0 and data.find(b"\r", at, at + step) < 0
        for at in range(0, len(data) - step, step)
    )
