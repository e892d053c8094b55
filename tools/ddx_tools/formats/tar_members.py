"""The regular files of a tar archive, in order, as its bytes come by.

`tarfile` reads the records that hold long names and attributes whole, however large they say they are, keeps every
header, and ends at the first damaged one. Its `TarInfo` reads the single header here.

Source of the format: POSIX.1-2017 pax (ustar and pax interchange formats), GNU tar 1.35 (`@dataref{long names}`).
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ddx_tools.errors import UnreadableInput
from ddx_tools.formats.unpacking import Budget, ByteStream

_BLOCK = tarfile.BLOCKSIZE
_MOST_RECORD_BYTES = 64 << 10
"""Of a record before a header as much is read: the longest path that Linux knows has 4 KiB."""
_MOST_LOST_BYTES = 64 << 20
"""As far behind a damaged header the next whole one is looked for."""
_LONG_NAME, _PAX, _SPARSE = tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.GNUTYPE_SPARSE
_FILES = frozenset({tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE})
_WITHOUT_CONTENT = frozenset({tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE})
_IS_EXTENDED, _GOES_ON = 482, 504
"""Where a GNU sparse file's header, and each further block of its map, say that another block follows."""


@dataclass(frozen=True)
class TarMember:
    """A regular file in an archive."""

    name: str
    size: int
    """Bytes."""
    written_ns: int
    """The last nanosecond of the second in which it was last written to, since the epoch."""


def tar_members(stream: ByteStream, budget: Budget, problem: Callable[[str], None]) -> Iterator[TarMember]:
    """Each regular file; its content is what `stream` gives next, as far as somebody reads it.

    Links, devices and sparse files are left out; `problem` is told of them, and of damaged headers, behind which
    reading goes on. Raises UnreadableInput at the end of an archive that is cut off, and where `stream` does.
    """
    name, is_sparse = "", False
    for header, block in _headers(stream, problem):
        budget.enter()
        start, size = stream.position, header.size
        if header.type == _LONG_NAME:
            name = stream.read(min(size, _MOST_RECORD_BYTES)).rstrip(b"\0").decode("utf-8", "surrogateescape")
        elif header.type == _PAX:
            attributes = _attributes(stream.read(min(size, _MOST_RECORD_BYTES)))
            name = attributes.get(b"path", b"").decode("utf-8", "surrogateescape") or name
            is_sparse = any(key.startswith(b"GNU.sparse.") for key in attributes)
        else:
            if header.type == _SPARSE or is_sparse:
                problem("sparse files in it were left out: a recorder writes none")
                start += _skip_map(stream, block) if header.type == _SPARSE else 0
            elif header.type in _FILES:
                yield TarMember(name or header.name, size, (int(header.mtime) + 1) * 10**9 - 1)
            elif header.type in _WITHOUT_CONTENT:
                problem("links, devices and pipes in it were left out")
                size = 0
            name, is_sparse = "", False
        stream.skip(start + -(-size // _BLOCK) * _BLOCK - stream.position)


def _headers(stream: ByteStream, problem: Callable[[str], None]) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """The headers and their bytes, up to the mark that ends an archive. A damaged one costs only what it led to."""
    lost = 0
    while lost <= _MOST_LOST_BYTES:
        block = stream.read(_BLOCK)
        if len(block) < _BLOCK:
            raise UnreadableInput("the tar archive is cut off: its end mark is missing")
        if block.count(0) == _BLOCK:
            return
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            if header.size < 0:
                raise tarfile.HeaderError("negative size")
        except tarfile.HeaderError as error:
            if not lost:
                problem(f"damaged at byte {stream.position - _BLOCK} ({error}): what stands there is lost")
            lost += _BLOCK
            continue
        lost = 0
        yield header, block
    raise UnreadableInput(f"there is no whole tar header within {_MOST_LOST_BYTES >> 20} MiB behind the damage")


def _attributes(record: bytes) -> dict[bytes, bytes]:
    """What a pax record says: lines of `<length> <key>=<value>`, each of as many bytes as it says itself."""
    found = {}
    while record:
        digits = record[:20].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        if length <= len(digits) + 1:
            break
        key, _, value = record[len(digits) + 1 : length].partition(b"=")
        found[key] = value.removesuffix(b"\n")
        record = record[length:]
    return found


def _skip_map(stream: ByteStream, header: bytes) -> int:
    """Read over the blocks behind the header of a GNU sparse file that go on with its map; returns their bytes."""
    start, goes_on = stream.position, header[_IS_EXTENDED]
    while goes_on and len(block := stream.read(_BLOCK)) == _BLOCK:
        goes_on = block[_GOES_ON]
    return stream.position - start
