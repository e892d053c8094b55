"""Secrets are taken out of bytes, too: of text in any encoding that can be told, of large files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from ddx_tools.formats.log_text import encoding_of
from ddx_tools.redact import redact

_TEXT_SAMPLE_BYTES = 8 << 10
_PIECE_BYTES = 4 << 20
_UTF16_UNIT_BYTES = 2


class _Readable(Protocol):
    def read(self, count: int, /) -> bytes: ...


def redact_bytes(data: bytes) -> bytes:
    """Text in UTF-8 or UTF-16 without its secrets. Bytes that hold none, or are no text, stay as they are."""
    encoding = encoding_of(data)
    if encoding:
        whole = len(data) - len(data) % _UTF16_UNIT_BYTES
        text = data[:whole].decode(encoding, "surrogatepass")
        clean = redact(text)
        return data if clean == text else clean.encode(encoding, "surrogatepass") + data[whole:]
    if b"\0" in data[:_TEXT_SAMPLE_BYTES]:
        return data
    return redact(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def copy_redacted(source: Path, target: Path) -> None:
    """Copy a file of text without its secrets. Raises OSError."""
    with source.open("rb") as log, target.open("wb") as kept:
        for piece in _pieces(log):
            kept.write(redact_bytes(piece))


def _pieces(stream: _Readable) -> Iterator[bytes]:
    """Whole lines, some megabytes of them at a time."""
    rest = b""
    while chunk := stream.read(_PIECE_BYTES):
        data = rest + chunk
        end = data.rfind(b"\n") + 1 or len(data)
        yield data[:end]
        rest = data[end:]
    if rest:
        yield rest
