"""Compressed bytes, forward only and in bounded memory: a hostile file of kilobytes can stand for terabytes.

Neither `gzip` nor `zstandard.stream_reader` serve here. The one reads the name in a header byte by byte in Python,
however long it is; the other ends like a whole stream where its input is cut off.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import zstandard

from ddx_tools.errors import UnreadableInput
from ddx_tools.formats.file_kinds import Kind

_READ_BYTES = 64 << 10
_ZSTD_READ_BYTES = 256
"""A block of 4 bytes can stand for 128 KiB, and all blocks that are given at once are unpacked at once: 8 MiB."""
_ZSTD_WINDOW_BYTES = 128 << 20
"""What `zstd --long=27` needs, the most that zstd itself unpacks without being told."""
_MOST_FRAMES = 100_000
_MOST_PADDING_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"


class TooMuch(UnreadableInput):
    """A limit of the whole file was reached: nothing more of it is read."""


class ByteStream(Protocol):
    """Bytes that can be read once, in order."""

    position: int

    def read(self, count: int) -> bytes:
        """The next `count` bytes; fewer only at the end. Raises UnreadableInput at damage and at limits."""

    def skip(self, count: int) -> None:
        """Pass over `count` bytes; at the end this does nothing."""


@dataclass
class Budget:
    """How much the content of one file may be; what was spent is added up over all layers of it."""

    packed_bytes: int
    """Size of the file itself."""
    most_bytes: int
    most_ratio: int
    most_members: int
    bytes: int = 0
    members: int = 0

    _FREE_BYTES = 64 << 20
    """So much harms nobody, whatever the ratio."""

    def spend(self, count: int) -> None:
        """Count unpacked bytes. Raises TooMuch."""
        self.bytes += count
        if self.bytes > self.most_bytes:
            raise TooMuch(
                f"it unpacks to more than the {self.most_bytes >> 20} MiB that are read of one archive",
                "Unpack it, and name the directory or the records themselves.",
            )
        if self.bytes > self._FREE_BYTES and self.bytes > self.most_ratio * self.packed_bytes:
            raise TooMuch(
                f"its {self.packed_bytes} bytes unpack to more than {self.most_ratio} times as many: "
                "a decompression bomb, or nothing that a recorder wrote"
            )

    def enter(self) -> None:
        """Count a member. Raises TooMuch."""
        self.members += 1
        if self.members > self.most_members:
            raise TooMuch(
                f"it holds more than the {self.most_members} members that are looked at",
                "Unpack it, and name the directory or the records themselves.",
            )


class PlainStream:
    """A file as it is."""

    def __init__(self, file: BinaryIO) -> None:
        self.position = 0
        self._file = file

    def read(self, count: int) -> bytes:
        """The next bytes."""
        data = self._file.read(count)
        self.position += len(data)
        return data

    def skip(self, count: int) -> None:
        """Seek forward; what lies behind the end reads as nothing."""
        self.position = self._file.seek(self.position + count)


class UnpackedStream:
    """What a compressed file stands for. What lies before a damage is given; the damage is raised behind it."""

    def __init__(self, chunks: Iterator[bytes], budget: Budget) -> None:
        self.position = 0
        self._chunks = chunks
        self._budget = budget
        self._rest = memoryview(b"")
        self._damage: UnreadableInput | None = None

    def read(self, count: int) -> bytes:
        """The next bytes."""
        return b"".join(self._take(count))

    def peek(self, count: int) -> bytes:
        """The next bytes, which are read again later."""
        head = self.read(count)
        self._rest = memoryview(head + bytes(self._rest))
        self.position -= len(head)
        return head

    def skip(self, count: int) -> None:
        """Unpack bytes and forget them."""
        for _ in self._take(count):
            pass

    def finish(self) -> None:
        """Unpack the padding behind what was read, to learn whether that is whole. Raises as `read` does."""
        self.skip(_MOST_PADDING_BYTES)
        self.skip(1)

    def _take(self, count: int) -> Iterator[memoryview]:
        wanted = count
        while count > 0 and (self._rest or self._more(anything=count < wanted)):
            part = self._rest[:count]
            self._rest = self._rest[len(part) :]
            self.position += len(part)
            count -= len(part)
            yield part

    def _more(self, *, anything: bool) -> bool:
        """Unpack further bytes, if there are any; a damage waits as long as there is anything to give."""
        try:
            if self._damage is None:
                chunk = next(self._chunks, b"")
                self._budget.spend(len(chunk))
                self._rest = memoryview(chunk)
                return bool(chunk)
        except TooMuch:
            raise
        except UnreadableInput as error:
            self._damage = error
        if self._damage and not anything:
            raise self._damage
        return False


def unpacked(file: BinaryIO, kind: Kind, budget: Budget) -> UnpackedStream:
    """The content of a compressed file (`Kind.GZIP` or `Kind.ZSTD`)."""
    return UnpackedStream(_CHUNKS[kind](file), budget)


def _gunzip(file: BinaryIO) -> Iterator[bytes]:
    """RFC 1952: any number of members, one behind the other; what else follows is padding."""
    data = file.read(_READ_BYTES)
    for _ in range(_MOST_FRAMES):
        decoder = zlib.decompressobj(16 + zlib.MAX_WBITS)
        while not decoder.eof:
            if not data and not (data := file.read(_READ_BYTES)):
                raise UnreadableInput("its gzip data are cut off: they end early")
            try:
                chunk = decoder.decompress(data, _READ_BYTES)
            except zlib.error as error:
                raise UnreadableInput(f"its gzip data are damaged ({error})") from None
            data = decoder.unconsumed_tail
            if chunk:
                yield chunk
        data = decoder.unused_data
        if len(data) < len(_GZIP_MAGIC):
            data += file.read(_READ_BYTES)
        if not data.startswith(_GZIP_MAGIC):
            return
    raise UnreadableInput(f"it consists of more than {_MOST_FRAMES} gzip members: nothing that a recorder wrote")


def _unzstd(file: BinaryIO) -> Iterator[bytes]:
    """RFC 8878: any number of frames, one behind the other."""
    data = file.read(_ZSTD_READ_BYTES)
    unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    for _ in range(_MOST_FRAMES):
        decoder = unpacker.decompressobj()
        while not decoder.eof:
            if not data and not (data := file.read(_ZSTD_READ_BYTES)):
                raise UnreadableInput("its zstd data are cut off: they end early")
            try:
                chunk = decoder.decompress(data)
            except zstandard.ZstdError as error:
                raise UnreadableInput(f"its zstd data are damaged ({str(error)[:200]})") from None
            data = b""
            if chunk:
                yield chunk
        data = decoder.unused_data or file.read(_ZSTD_READ_BYTES)
        if not data:
            return
    raise UnreadableInput(f"it consists of more than {_MOST_FRAMES} zstd frames: nothing that a recorder wrote")


_CHUNKS: dict[Kind, Callable[[BinaryIO], Iterator[bytes]]] = {Kind.GZIP: _gunzip, Kind.ZSTD: _unzstd}
