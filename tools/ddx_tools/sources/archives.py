"""Unpacks archives and compressed files once, into a private directory, within a budget.

train.log.xz                   a compressed file keeps its original name
job.tar.gz!logs/rank3.log      a member of an archive
all.tar!node17.zip!rank_3      a member of an archive in an archive; archives nested deeper stay closed

Member names are labels, never paths: the written files are named by numbers. Links, devices, pipes and sparse files in
an archive are left out.
"""

from __future__ import annotations

import bz2
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard

from ddx_tools.model.errors import UnreadableInput
from ddx_tools.model.files.kinds import ARCHIVES, COMPRESSED, HEAD_BYTES, FileKind, kind_of
from ddx_tools.model.files.names import shown
from ddx_tools.parsers.flight_records.debug_pages import records_of_page
from ddx_tools.sources.kinds import may_be_text

SEPARATOR = "!"
"""Separates an archive's path from the name of a member."""
MOST_DEEP = 2
"""Archives in archives are opened, but not archives inside those."""
_READ_BYTES = 1 << 20
_MOST_RECORD_BYTES = 8 << 20
"""Limit on one record of an archive: a zip's directory, or a tar's long name."""
_MOST_PROBLEMS = 20
_MOST_SAID = 200
_MOST_FRAMES = 100_000
_MEMORY_BYTES = 128 << 20
"""The memory that unpacking needs after `zstd --long=27` and `xz -9`."""
_ENCRYPTED = 0x1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Other methods take as much memory as the archive demands."""
_DAMAGES = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, zstandard.ZstdError,
    EOFError, NotImplementedError, RuntimeError, ValueError, OSError,
)  # fmt: skip


class TooMuch(UnreadableInput):
    """The budget is spent: nothing more of the archive is read."""


@dataclass
class UnpackBudget:
    """Limits on the unpacked content of one file, over all its layers."""

    packed_bytes: int
    """Size of the file itself."""
    most_bytes: int = 8 << 30
    """Records of 10,000 ranks with 2,000 entries each are 5 GiB."""
    most_ratio: int = 500
    """Records of a whole job, packed with `zstd -19 --long`, have a lower ratio."""
    most_members: int = 500_000
    member_bytes: int = 1 << 30
    bytes: int = 0
    members: int = 0

    _FREE_BYTES = 64 << 20
    """This much is harmless, whatever the ratio."""

    def spend(self, count: int) -> None:
        """Count unpacked bytes. Raises TooMuch."""
        self.bytes += count
        if self.bytes > self.most_bytes:
            raise TooMuch(
                f"it unpacks to more than {self.most_bytes >> 20} MiB, the limit for one archive",
                "Unpack it and name the directory or the files.",
            )
        if self.bytes > self._FREE_BYTES and self.bytes > self.most_ratio * self.packed_bytes:
            raise TooMuch(
                f"its {self.packed_bytes} bytes unpack to more than {self.most_ratio} times as many: "
                "a decompression bomb, or not written by a job"
            )

    def enter(self) -> None:
        """Count a member. Raises TooMuch."""
        self.members += 1
        if self.members > self.most_members:
            raise TooMuch(
                f"it has more than {self.most_members} members, the limit for one archive",
                "Unpack it and name the directory or the files.",
            )


@dataclass(frozen=True)
class ArchiveMember:
    """A file from an archive."""

    path: str
    """Its name for a person: the path of the archive, and the path inside it."""
    file: Path
    """The file that holds its bytes."""
    size_bytes: int
    written_ns: int | None = None
    whole: bool = True
    """Whether it is complete up to its end."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further facts from a page of the debug server: `host`, `only_active`."""


class Unpacking:
    """One pass through an archive or a compressed file. Members are written below `scratch` as they are read."""

    def __init__(self, scratch: Path, budget: UnpackBudget) -> None:
        self.problems: dict[str, None] = {}
        """What could not be read, as lines for a person, each once."""
        self.passed_over = 0
        """The number of members that are neither texts nor records."""
        self._scratch = scratch
        self._budget = budget
        self._names: dict[str, int] = {}
        self._number = sum(1 for _ in scratch.iterdir())

    def members(self, path: str, file: Path) -> Iterator[ArchiveMember]:
        """Yield the files of the archive named `path`; damage and exceeded limits are noted in `problems`."""
        try:
            yield from self._opened(path, file, deep=0)
        except TooMuch as error:
            self._problem(path, error)

    def _opened(self, path: str, file: Path, deep: int) -> Iterator[ArchiveMember]:
        """Yield the members of a file that is `deep` archives down, or its content if it is only compressed."""
        try:
            with file.open("rb") as stream:
                kind = kind_of(stream.read(HEAD_BYTES))
                stream.seek(0)
                if kind in COMPRESSED:
                    yield from self._compressed(path, kind, stream, deep)
                elif deep == MOST_DEEP:
                    self._problem(path, "nested more than two archives deep, so it was not opened. Unpack it.")
                elif kind is FileKind.TAR:
                    yield from self._tar(path, stream, deep + 1)
                elif kind is FileKind.ZIP:
                    yield from self._zip(path, stream, deep + 1)
                elif kind is FileKind.PAGE:
                    yield from self._page(path, stream)
        except UnreadableInput as error:
            if isinstance(error, TooMuch):
                raise
            self._problem(path, error)
        except _DAMAGES as error:
            self._problem(path, f"damaged or cut off ({str(error)[:_MOST_SAID]})")

    def _compressed(self, path: str, kind: FileKind, stream: BinaryIO, deep: int) -> Iterator[ArchiveMember]:
        """Yield the content up to any damage."""
        for inner, written in self._written(path, _Plain(kind, stream, self._budget).read):
            if inner in COMPRESSED:
                self._problem(path, "compressed more than once, so it was not opened. Unpack it.")
            elif inner in ARCHIVES:
                yield from self._opened(path, written.file, deep)
            else:
                yield written
                continue
            written.file.unlink()

    def _tar(self, path: str, stream: BinaryIO, deep: int) -> Iterator[ArchiveMember]:
        damaged = partial(self._problem, path)

        class Header(tarfile.TarInfo):
            """After a damaged header, reading continues at the next intact one, and the damage is reported."""

            @classmethod
            def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Header:
                try:
                    header = super().frombuf(buf, encoding, errors)
                    if header.size < 0:
                        raise tarfile.InvalidHeaderError("negative size")  # type: ignore[attr-defined]
                except tarfile.InvalidHeaderError:  # type: ignore[attr-defined]
                    damaged("a damaged header: the data after it is lost")
                    raise
                return header

        bounded = cast(BinaryIO, _Bounded(stream))
        archive = tarfile.open(fileobj=bounded, mode="r:", ignore_zeros=True, tarinfo=Header)  # noqa: SIM115 - nothing to close
        while member := archive.next():
            vars(archive)["members"] = []  # it would keep all members in memory
            self._budget.enter()
            if member.isdir():
                continue
            if not member.isreg() or member.issparse():
                self._problem(path, "links, devices, pipes and sparse files in it were left out")
                continue
            content = archive.extractfile(member)
            if content is None:
                continue
            inside = self._inside(path, member.name)
            written_ns = int(member.mtime) * 10**9 + 10**9 - 1 if 0 <= member.mtime < 1 << 33 else None
            yield from self._member(inside, member.size, content.read, deep, written_ns)
        stream.seek(-min(tarfile.BLOCKSIZE, stream.seek(0, 2)), 2)
        if stream.read().strip(b"\0"):
            self._problem(path, "the tar archive is cut off: its end mark is missing")

    def _zip(self, path: str, stream: BinaryIO, deep: int) -> Iterator[ArchiveMember]:
        with zipfile.ZipFile(cast(BinaryIO, _Bounded(stream))) as archive:
            for member in archive.infolist():
                self._budget.enter()
                kind = stat.S_IFMT(member.external_attr >> 16)
                if member.is_dir():
                    continue
                if kind not in (0, stat.S_IFREG):
                    self._problem(path, "links, devices, pipes and sparse files in it were left out")
                elif member.flag_bits & _ENCRYPTED:
                    self._problem(path, "encrypted files in it were left out: unpack it and name the directory")
                elif member.compress_type not in _METHODS:
                    self._problem(path, "files in it with a compression other than deflate were left out: unpack it")
                else:
                    inside = self._inside(path, member.filename)
                    try:
                        with archive.open(member) as content:
                            read = partial(self._unpacked, content.read)
                            yield from self._member(inside, member.file_size, read, deep)
                    except TooMuch:
                        raise
                    except _DAMAGES as error:
                        self._problem(inside, f"damaged or cut off ({str(error)[:_MOST_SAID]})")

    def _unpacked(self, read: Callable[[int], bytes], count: int) -> bytes:
        data = read(count)
        self._budget.spend(len(data))
        return data

    def _page(self, path: str, stream: BinaryIO) -> Iterator[ArchiveMember]:
        for record in records_of_page(stream, self._budget.member_bytes):
            self._budget.enter()
            inside = self._inside(path, f"rank_{record.rank}")
            if kind_of(record.data[:HEAD_BYTES]) is not FileKind.DUMP:
                said = shown(record.data[:_MOST_SAID].decode("utf-8", "replace"))
                self._problem(inside, f"the debug server got no record from this rank: {said}")
                continue
            file = self._new_file()
            file.write_bytes(record.data)
            facts = {"host": record.host, "only_active": record.only_active}
            yield ArchiveMember(inside, file, len(record.data), facts=facts)

    def _member(
        self, path: str, size: int, read: Callable[[int], bytes], deep: int, written_ns: int | None = None
    ) -> Iterator[ArchiveMember]:
        if size > self._budget.member_bytes:
            most = self._budget.member_bytes >> 20
            self._problem(path, f"{size} bytes: more than {most} MiB, the limit for one file in an archive")
            return
        for kind, written in self._written(path, read):
            if kind in COMPRESSED | ARCHIVES:
                yield from self._opened(path, written.file, deep)
                written.file.unlink()
            else:
                yield replace(written, written_ns=written_ns)

    def _written(self, path: str, read: Callable[[int], bytes]) -> Iterator[tuple[FileKind | None, ArchiveMember]]:
        """Write what `read` returns to a file; yield it with its kind, unless useless or damaged from the start."""
        file = self._new_file()
        size, whole = 0, True
        spent: TooMuch | None = None
        kind: FileKind | None = FileKind.EMPTY
        try:
            with file.open("wb") as out:
                while chunk := read(_READ_BYTES):
                    if not size:
                        while len(chunk) < HEAD_BYTES and (more := read(_READ_BYTES)):
                            chunk += more
                        kind = kind_of(chunk[:HEAD_BYTES])
                        if kind is None and not may_be_text(chunk):
                            self.passed_over += 1
                            break
                    size += out.write(chunk)
                    if size > self._budget.member_bytes and kind not in ARCHIVES:
                        most = self._budget.member_bytes >> 20
                        self._problem(path, f"more than {most} MiB, the limit for one file in an archive")
                        whole = False
                        break
        except TooMuch as error:
            spent, whole = error, False
        except _DAMAGES as error:
            self._problem(path, f"damaged or cut off ({str(error)[:_MOST_SAID]})")
            whole = False
        # The beginning of a log is useful, that of an oversized record is not.
        useless = (spent or size > self._budget.member_bytes) and kind not in (None, *ARCHIVES)
        if (size and not useless) or (whole and kind is FileKind.EMPTY):
            # Data read before the budget was spent may still be used: members of a tar archive come first.
            yield kind, ArchiveMember(path, file, size, whole=whole)
        else:
            file.unlink()
        if spent:
            raise spent

    def _new_file(self) -> Path:
        self._number += 1
        return self._scratch / str(self._number)

    def _inside(self, path: str, name: str) -> str:
        """The label of a member, with a number appended if an archive has the name twice."""
        if name.startswith("/") or ".." in name.split("/"):
            self._problem(
                path, "it has names that point outside it; they serve only as labels, and nothing is written there"
            )
        label = path + SEPARATOR + shown(name.removeprefix("./"))
        number = self._names[label] = self._names.get(label, 0) + 1
        return label if number == 1 else f"{label}#{number}"

    def _problem(self, path: str, words: object) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems[f"{path}: {words}"] = None


class _Bounded:
    """A file that limits the size of one read: hostile archives claim directories and names of gigabytes."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell = file.seek, file.tell
        self._read = file.read

    def read(self, size: int = -1) -> bytes:
        """The next bytes. Raises ValueError."""
        data = self._read(_MOST_RECORD_BYTES + 1 if size < 0 else min(size, _MOST_RECORD_BYTES + 1))
        if len(data) > _MOST_RECORD_BYTES:
            raise ValueError(f"a record in it is larger than the limit of {_MOST_RECORD_BYTES >> 20} MiB")
        return data

    def seekable(self) -> bool:
        """Return True: archives are files."""
        return True


class _Plain:
    """The content of a compressed file: any number of concatenated streams.

    `gzip` reads a header's name byte by byte, however long it is, and zstandard's readers take truncated input for a
    complete file; so the decoders are fed here, all in the same way.
    """

    def __init__(self, kind: FileKind, file: BinaryIO, budget: UnpackBudget) -> None:
        self._budget = budget
        self._make, self._feed_bytes, self._magic = _DECODERS[kind]
        self._file = file
        self._decoder = self._make()
        self._data = b""
        self._rest = memoryview(b"")
        self._frames = 1

    def read(self, count: int) -> bytes:
        """Read at most `count` of the next bytes. Raises EOFError or an error of the format."""
        while not self._rest and self._goes_on():
            data, self._data = self._data, b""
            self._rest = memoryview(self._decoder.decompress(data))
        chunk, self._rest = bytes(self._rest[:count]), self._rest[count:]
        self._budget.spend(len(chunk))
        return chunk

    def _goes_on(self) -> bool:
        """Whether there are bytes to decode, after loading them. Anything after the last stream is padding."""
        if self._decoder.eof:
            self._data = self._decoder.unused_data or self._file.read(self._feed_bytes)
            if len(self._data) < len(self._magic):
                self._data += self._file.read(self._feed_bytes)
            if not self._data or not self._data.startswith(self._magic):
                return False
            self._frames += 1
            if self._frames > _MOST_FRAMES:
                raise ValueError(f"it consists of more than {_MOST_FRAMES} streams: not written by a job")
            self._decoder = self._make()
        elif not self._data:
            self._data = self._file.read(self._feed_bytes)
            if not self._data:
                raise EOFError("it ends early")
        return True


_DECODERS: dict[FileKind, tuple[Callable[[], Any], int, bytes]] = {
    FileKind.GZIP: (lambda: zlib.decompressobj(wbits=16 + zlib.MAX_WBITS), 1 << 10, b"\x1f\x8b"),
    FileKind.XZ: (lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY_BYTES), 4 << 10, b"\xfd7zXZ\0"),
    FileKind.BZIP2: (bz2.BZ2Decompressor, 1 << 10, b"BZh"),
    FileKind.ZSTD: (lambda: zstandard.ZstdDecompressor(max_window_size=_MEMORY_BYTES).decompressobj(), 256, b""),
}
"""For each format: how to create a decoder, how many bytes to feed it at once, and how a further stream begins.
Everything fed at once is unpacked at once: 4 bytes of zstd can stand for 128 KiB, in the other formats for less."""
