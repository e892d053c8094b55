"""The regular files of a zip archive."""

from __future__ import annotations

import io
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

from ddx_tools.errors import UnreadableInput
from ddx_tools.formats.unpacking import Budget, ByteStream, UnpackedStream

_MOST_DIRECTORY_BYTES = 8 << 20
"""More than 100,000 members; each takes half a KiB of memory once it is read."""
_READ_BYTES = 64 << 10
_ENCRYPTED = 0x1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The others need packages, or as much memory as the archive wants (LZMA)."""
_DAMAGES = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)


def zip_members(
    file: BinaryIO, budget: Budget, problem: Callable[[str], None]
) -> Iterator[tuple[str, int, ByteStream]]:
    """(name, size, content) of each regular file. Raises UnreadableInput if the archive has no readable directory.

    Encrypted members, links and unusual methods are left out; `problem` is told of them.
    """
    try:
        archive = zipfile.ZipFile(_Bounded(file))
    except _DAMAGES as error:
        raise UnreadableInput(f"the zip archive is damaged or cut off ({str(error)[:200]})") from None
    with archive:
        for member in archive.infolist():
            budget.enter()
            kind = stat.S_IFMT(member.external_attr >> 16)
            if member.is_dir():
                continue
            if kind not in (0, stat.S_IFREG):
                problem("links, devices and pipes in it were left out")
            elif member.flag_bits & _ENCRYPTED:
                problem("encrypted files in it were left out: unpack it, and name the directory")
            elif member.compress_type not in _METHODS:
                problem("files in it that are neither stored nor deflated were left out: unpack it")
            else:
                yield member.filename, member.file_size, UnpackedStream(_chunks(archive, member), budget)


def _chunks(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[bytes]:
    try:
        with archive.open(member) as content:
            while chunk := content.read(_READ_BYTES):
                yield chunk
    except _DAMAGES as error:
        raise UnreadableInput(f"a member of the zip archive is damaged ({str(error)[:200]})") from None


class _Bounded(io.BufferedIOBase):
    """A file that gives no more bytes at once than a directory of members may have: `zipfile` reads it whole."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file

    def read(self, size: int | None = -1, /) -> bytes:
        """The next bytes."""
        most = _MOST_DIRECTORY_BYTES
        data = self._file.read(most + 1 if size is None or not 0 <= size <= most else size)
        if len(data) > most:
            raise ValueError(f"its directory is larger than the {most >> 20} MiB that are read")
        return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move in the file."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """The position in the file."""
        return self._file.tell()

    def seekable(self) -> bool:
        """A directory stands at the end."""
        return True
