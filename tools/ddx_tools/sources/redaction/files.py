"""Files lose their secrets: text in any encoding, compressed logs, large files a few megabytes at a time."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ddx_tools.errors import UnreadableInput
from ddx_tools.formats.file_kinds import HEAD_BYTES, Kind, kind_of
from ddx_tools.sources.redaction.text import Counts, redact_bytes, whole_lines

if TYPE_CHECKING:
    from ddx_tools.formats.unpacking import UnpackedStream

RECORDS = (Kind.DUMP, Kind.PICKLE, Kind.EMPTY)
"""Files whose bytes say how long each text in them is: they stay as they are."""

_PIECE_BYTES = 4 << 20


class _Readable(Protocol):
    def read(self, count: int, /) -> bytes: ...


class _Packer(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self, mode: int = ..., /) -> bytes: ...


def redact_file(data: bytes, counts: Counts | None = None) -> bytes:
    """What a file holds, without its secrets, if it is text or a compressed log; the same bytes if it holds none."""
    kind = kind_of(data[:HEAD_BYTES])
    if kind in RECORDS:
        return data
    if kind in (Kind.GZIP, Kind.ZSTD):
        return redact_packed_log(data, counts)
    return data if kind in (Kind.TAR, Kind.ZIP) else redact_bytes(data, counts)


def redact_packed_log(data: bytes, counts: Counts | None = None) -> bytes:
    """A log in gzip or zstd without its secrets, packed again; the same bytes if it holds none, or is no such log.

    What cannot be unpacked to its end is kept as far as it can: nobody knows what the rest holds.
    """
    from ddx_tools.logs.packed import is_packed_log

    if not is_packed_log(data) or _is_clean(data):
        return data
    kind = kind_of(data[:HEAD_BYTES])
    assert kind is not None
    packer, cut = packer_of(kind)
    packed = bytearray()
    try:
        for piece in _pieces(_unpacked(data)):
            packed += packer.compress(redact_bytes(piece, counts))
    except UnreadableInput:
        return bytes(packed + cut())
    return bytes(packed + packer.flush())


def copy_redacted(source: Path, target: Path, counts: Counts | None = None) -> None:
    """Copy a file of text without its secrets. Raises OSError."""
    with source.open("rb") as log, target.open("wb") as kept:
        for piece in _pieces(log):
            kept.write(redact_bytes(piece, counts))


def _is_clean(packed: bytes) -> bool:
    try:
        return all(redact_bytes(piece) is piece for piece in _pieces(_unpacked(packed)))
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
    """Whole lines, some megabytes of them at a time; a private key stays in one piece."""
    rest = b""
    while chunk := stream.read(_PIECE_BYTES):
        data = rest + chunk
        end = whole_lines(data, 0, len(data))
        yield data[:end]
        rest = data[end:]
    if rest:
        yield rest
