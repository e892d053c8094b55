"""Secrets are taken out of archives, too: a tar or zip of flight records often holds logs beside them."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import BinaryIO

from ddx_tools.errors import UnreadableInput
from ddx_tools.formats.archives import Limits
from ddx_tools.formats.file_kinds import ARCHIVES, COMPRESSED, HEAD_BYTES, Kind, kind_of
from ddx_tools.formats.tar_members import tar_members
from ddx_tools.formats.unpacking import Budget, ByteStream, PlainStream, unpacked
from ddx_tools.formats.zip_members import zip_members
from ddx_tools.sources.redaction.files import RECORDS, packer_of, redact_file

_LIMITS = Limits()
_MOST_DEEP = 2
"""As deep as archives in archives are read."""

_Members = Iterator[tuple[str, int, ByteStream]]
"""Name, size and content of each regular file."""


def redact_archive(data: bytes, *, depth: int = 1) -> bytes:
    """An archive without the secrets of the texts in it; the same bytes if these hold none, or if it is no archive.

    `depth`: in how many archives it lies, itself included.
    """
    clean = io.BytesIO()
    return clean.getvalue() if copy_archive_redacted(io.BytesIO(data), clean, depth=depth) else data


def copy_archive_redacted(source: BinaryIO, target: BinaryIO, *, depth: int = 1) -> bool:
    """Write an archive that holds secrets without them; False, and nothing written, if it holds none or is none.

    What is written has the regular files alone, and ends where the archive cannot be read any further. Raises OSError.
    """
    if not _holds_secrets(source, depth):
        return False
    source.seek(0)
    kind = kind_of(source.read(HEAD_BYTES))
    if kind is Kind.ZIP:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive, suppress(UnreadableInput):
            for name, _, data in _cleaned(source, depth):
                archive.writestr(name, data)
    elif kind in COMPRESSED:
        packer, cut = packer_of(kind)
        is_whole = _write_tar(_cleaned(source, depth), lambda data: target.write(packer.compress(data)))
        target.write(packer.flush() if is_whole else cut())
    else:
        _write_tar(_cleaned(source, depth), target.write)
    return True


def _holds_secrets(source: BinaryIO, depth: int) -> bool:
    with suppress(UnreadableInput):
        for _, size, content in _members(source):
            head = content.read(min(size, HEAD_BYTES))
            if kind_of(head) in RECORDS or size > _LIMITS.member_bytes:
                continue
            data = head + content.read(size - len(head))
            if _clean(data, depth) != data:
                return True
    return False


def _cleaned(source: BinaryIO, depth: int) -> Iterator[tuple[str, int | None, bytes]]:
    """Name and content without secrets of each file, and how long the archive says it is where it is cut off there."""
    for name, size, content in _members(source):
        if size <= _LIMITS.member_bytes:
            data = content.read(size)
            yield name, None if len(data) == size else size, _clean(data, depth)


def _clean(data: bytes, depth: int) -> bytes:
    is_archive = kind_of(data[:HEAD_BYTES]) in COMPRESSED | ARCHIVES
    return redact_file(redact_archive(data, depth=depth + 1) if is_archive and depth < _MOST_DEEP else data)


def _members(source: BinaryIO) -> _Members:
    """The files in an archive; none of what is no archive. Raises UnreadableInput at damage and at limits."""
    size = source.seek(0, io.SEEK_END)
    source.seek(0)
    budget = Budget(size, _LIMITS.unpacked_bytes, _LIMITS.ratio, _LIMITS.members)
    kind = kind_of(source.read(HEAD_BYTES))
    source.seek(0)
    if kind is Kind.ZIP:
        yield from zip_members(source, budget, _no_problem)
    elif kind is Kind.TAR:
        yield from _of_tar(PlainStream(source), budget)
    elif kind in COMPRESSED:
        stream = unpacked(source, kind, budget)
        if kind_of(stream.peek(HEAD_BYTES)) is Kind.TAR:
            yield from _of_tar(stream, budget)


def _of_tar(stream: ByteStream, budget: Budget) -> _Members:
    for member in tar_members(stream, budget, _no_problem):
        yield member.name, member.size, stream


def _no_problem(words: str) -> None:
    """The probe that reads the archive tells of it."""


def _write_tar(files: Iterator[tuple[str, int | None, bytes]], write: Callable[[bytes], object]) -> bool:
    """Whether the archive came to an end: one that is cut off stays so."""
    try:
        for name, said, data in files:
            header = tarfile.TarInfo(name)
            header.size = len(data) if said is None else max(said, len(data) + 1)
            write(header.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape") + data)
            if said is not None:
                return False
            write(b"\0" * (-len(data) % tarfile.BLOCKSIZE))
    except UnreadableInput:
        return False
    write(b"\0" * (2 * tarfile.BLOCKSIZE))
    return True
