"""Packs a bundle into one file, `.tar.zst`, without names of people, and unpacks it within limits."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

import zstandard

from ddx_tools.model.errors import UnreadableInput, UsageError

MANIFEST = "manifest.json"
PACKED_SUFFIX = ".tar.zst"
_FIRST_MEMBERS = 3
_UNPACKED_LIMIT_BYTES = 4 << 30
_UNPACKED_LIMIT_FILES = 200_000


def begins_as_a_bundle(archive: Path) -> bool:
    """Whether a packed archive begins with a manifest. One that cannot be read that far counts as a damaged bundle."""
    try:
        with (
            archive.open("rb") as stream,
            zstandard.ZstdDecompressor().stream_reader(stream) as plain,
            tarfile.open(fileobj=plain, mode="r|") as members,
        ):
            names = [member.name for member, _ in zip(members, range(_FIRST_MEMBERS), strict=False)]
    except (tarfile.TarError, zstandard.ZstdError, OSError, EOFError, ValueError):
        return True
    return not names or MANIFEST in (name.removeprefix("./") for name in names)


class NameTaken(UsageError):
    """A bundle of that name already exists."""


def pack(directory: Path, target: Path) -> None:
    """Write a bundle directory as `.tar.zst`, completely or not at all.

    Raises NameTaken if a file of that name exists, even one written meanwhile, and UsageError if it cannot be written.
    """
    try:
        with (
            _named_at_the_end(target) as out,
            zstandard.ZstdCompressor(level=6).stream_writer(out, closefd=False) as stream,
            tarfile.open(fileobj=stream, mode="w|") as archive,
        ):
            archive.add(directory, arcname=".", filter=_anonymous)
    except FileExistsError as error:
        raise NameTaken(f"{target} already exists", "Use another name, or replace it: --force") from error
    except OSError as error:
        raise not_writable(target, error) from error


@contextmanager
def _named_at_the_end(target: Path) -> Iterator[BinaryIO]:
    """Yield a file that gets its name only when complete, so that a killed process leaves no partial file.

    Raises FileExistsError if the name is taken; of two concurrent writers, the second one gets it.
    """
    try:
        number = os.open(target.parent, os.O_TMPFILE | os.O_WRONLY, 0o666)
    except (AttributeError, OSError):  # not Linux, or a file system without support
        try:
            with target.open("xb") as out:
                yield out
        except FileExistsError:
            raise
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        return
    with os.fdopen(number, "wb") as out:
        yield out
        out.flush()
        # With a directory given, the link to the file is followed.
        os.link(f"/proc/self/fd/{number}", target, src_dir_fd=number)


def not_writable(target: Path, error: OSError) -> UsageError:
    """The error for a bundle that cannot be written."""
    return UsageError(
        f"the bundle cannot be written to {target}: {(error.strerror or str(error)).lower()}",
        "Name a new directory, or a file ending in .tar.zst, in a place that you may write to.",
    )


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def unpack(archive: Path, directory: Path) -> None:
    """Unpack a bundle within limits: only regular files inside the directory, bounded in bytes and number.

    Raises UnreadableInput.
    """
    try:
        with archive.open("rb") as stream, zstandard.ZstdDecompressor().stream_reader(stream) as plain:
            watched = _Tail(plain)
            _extract(watched, directory)
            if watched.last.strip(b"\0"):
                raise EOFError("it is cut off")
    except (tarfile.TarError, zstandard.ZstdError, OSError, EOFError, ValueError) as error:
        raise UnreadableInput(
            f"{archive} is not a readable bundle: {error}", "Copy it again: it may have been truncated in transfer."
        ) from error


class _Tail(io.BufferedIOBase):
    """Remembers the last block read. A tar archive ends in zeros; zstd and tarfile both accept one that does not."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self._stream = stream
        self.last = b""

    def read(self, size: int | None = -1) -> bytes:
        """Read the next bytes of the stream."""
        data = self._stream.read(-1 if size is None else size)
        self.last = (self.last + data)[-tarfile.BLOCKSIZE :]
        return data


def _extract(stream: _Tail, directory: Path) -> None:
    size = files = 0
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            size += member.size
            files += 1
            if size > _UNPACKED_LIMIT_BYTES or files > _UNPACKED_LIMIT_FILES:
                raise UnreadableInput("the bundle unpacks to more than 4 GiB or 200,000 files; it was not read")
            if member.isfile() or member.isdir():
                # Owners and times of the files mean nothing here: the journal records the host's.
                archive.extract(member, directory, set_attrs=False, filter="data")
