"""Secrets are taken out of bytes, too: of text in any encoding that can be told, of compressed logs, of large files."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ddx_tools.errors import UnreadableInput
from ddx_tools.formats.file_kinds import Kind, kind_of
from ddx_tools.formats.log_text import encoding_of
from ddx_tools.redact import redact

if TYPE_CHECKING:
    from ddx_tools.formats.unpacking import UnpackedStream

_TEXT_SAMPLE_BYTES = 8 << 10
_PIECE_BYTES = 4 << 20
_UTF16_UNIT_BYTES = 2


class _Readable(Protocol):
    def read(self, count: int, /) -> bytes: ...


class _Packer(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self, mode: int = ..., /) -> bytes: ...


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


def redact_packed_log(data: bytes) -> bytes:
    """A log in gzip or zstd without its secrets, packed again; the same bytes if it holds none, or is no such log.

    What cannot be unpacked to its end is kept as far as it can: nobody knows what the rest holds.
    """
    from ddx_tools.logs.packed import is_packed_log

    if not is_packed_log(data) or _is_clean(data):
        return data
    kind = kind_of(data[:_TEXT_SAMPLE_BYTES])
    assert kind is not None
    packer, cut = packer_of(kind)
    packed = bytearray()
    try:
        for piece in _pieces(_unpacked(data)):
            packed += packer.compress(redact_bytes(piece))
    except UnreadableInput:
        return bytes(packed + cut())
    return bytes(packed + packer.flush())


def copy_redacted(source: Path, target: Path) -> None:
    """Copy a file of text without its secrets. Raises OSError."""
    with source.open("rb") as log, target.open("wb") as kept:
        for piece in _pieces(log):
            kept.write(redact_bytes(piece))


def _is_clean(packed: bytes) -> bool:
    try:
        return all(redact_bytes(piece) == piece for piece in _pieces(_unpacked(packed)))
    except UnreadableInput:
        return False


def _unpacked(data: bytes) -> UnpackedStream:
    from ddx_tools.logs.packed import opened

    stream = opened(data)
    assert stream is not None
    return stream


def packer_of(kind: Kind) -> tuple[_Packer, Callable[[], bytes]]:
    """What packs bytes as a file of some kind, and what ends that in the middle."""
    import zstandard

    if kind is Kind.GZIP:
        gzip = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
        return gzip, lambda: gzip.flush(zlib.Z_SYNC_FLUSH)
    zstd = zstandard.ZstdCompressor().compressobj()
    return zstd, lambda: zstd.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)


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
