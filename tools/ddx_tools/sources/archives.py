"""Archives and compressed files, unpacked once into a private directory, as far as a budget reaches.

train.log.xz                   a compressed file is called what it was called
job.tar.gz!logs/rank3.log      a member of an archive
all.tar!node17.zip!rank_3      a member of an archive in an archive; those that lie deeper stay closed

Names of members are labels and never paths: the files that are written have numbers for names. Links, devices, pipes
and sparse files in an archive are left out.
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
"""Between an archive and a member of it."""
MOST_DEEP = 2
"""Archives in archives are opened, those in them are not."""
_READ_BYTES = 1 << 20
_MOST_RECORD_BYTES = 8 << 20
"""More at once is not read of an archive: of a zip's directory, or of a tar's record of a long name."""
_MOST_PROBLEMS = 20
_MOST_SAID = 200
_MOST_FRAMES = 100_000
_MEMORY_BYTES = 128 << 20
"""What `zstd --long=27` and `xz -9` need to unpack."""
_ENCRYPTED = 0x1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The others take as much memory as the archive wants."""
_DAMAGES = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, zstandard.ZstdError,
    EOFError, NotImplementedError, RuntimeError, ValueError, OSError,
)  # fmt: skip


class TooMuch(UnreadableInput):
    """The budget is spent: nothing more of the archive is read."""


@dataclass
class UnpackBudget:
    """How much the content of one brought file may be, over all layers of it."""

    packed_bytes: int
    """Size of the file itself."""
    most_bytes: int = 8 << 30
    """Records of 10,000 ranks with 2,000 entries each are 5 GiB."""
    most_ratio: int = 500
    """Records of a whole job, packed with `zstd -19 --long`, come to less."""
    most_members: int = 500_000
    member_bytes: int = 1 << 30
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
                "Unpack it, and name the directory or the files themselves.",
            )
        if self.bytes > self._FREE_BYTES and self.bytes > self.most_ratio * self.packed_bytes:
            raise TooMuch(
                f"its {self.packed_bytes} bytes unpack to more than {self.most_ratio} times as many: "
                "a decompression bomb, or nothing that a job wrote"
            )

    def enter(self) -> None:
        """Count a member. Raises TooMuch."""
        self.members += 1
        if self.members > self.most_members:
            raise TooMuch(
                f"it holds more than the {self.most_members} members that are looked at",
                "Unpack it, and name the directory or the files themselves.",
            )


@dataclass(frozen=True)
class ArchiveMember:
    """A file that came out of an archive."""

    path: str
    """What a person calls it: the path of the archive, and inside it."""
    file: Path
    """Where its bytes lie."""
    size_bytes: int
    written_ns: int | None = None
    whole: bool = True
    """Its end is there."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What a page of the debug server says of a record besides: `host`, `only_active`."""


class Unpacking:
    """One way through an archive or a compressed file. Members are written below `scratch` as they come by."""

    def __init__(self, scratch: Path, budget: UnpackBudget) -> None:
        self.problems: dict[str, None] = {}
        """What could not be read, each once: lines for a person."""
        self.passed_over = 0
        """How many members are neither texts nor records."""
        self._scratch = scratch
        self._budget = budget
        self._names: dict[str, int] = {}
        self._number = sum(1 for _ in scratch.iterdir())

    def members(self, path: str, file: Path) -> Iterator[ArchiveMember]:
        """The files in an archive that a person calls `path`. What is damaged or too much ends up in `problems`."""
        try:
            yield from self._opened(path, file, deep=0)
        except TooMuch as error:
            self._problem(path, error)

    def _opened(self, path: str, file: Path, deep: int) -> Iterator[ArchiveMember]:
        """The members of a file that lies in so many archives; the content of the file if it is only compressed."""
        try:
            with file.open("rb") as stream:
                kind = kind_of(stream.read(HEAD_BYTES))
                stream.seek(0)
                if kind in COMPRESSED:
                    yield from self._compressed(path, kind, stream, deep)
                elif deep == MOST_DEEP:
                    self._problem(path, "an archive in an archive in an archive: it was not opened. Unpack it.")
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
        """What lies before a damage is given."""
        for inner, written in self._written(path, _Plain(kind, stream, self._budget).read):
            if inner in COMPRESSED:
                self._problem(path, "packed more than once: it was not opened. Unpack it.")
            elif inner in ARCHIVES:
                yield from self._opened(path, written.file, deep)
            else:
                yield written
                continue
            written.file.unlink()

    def _tar(self, path: str, stream: BinaryIO, deep: int) -> Iterator[ArchiveMember]:
        damaged = partial(self._problem, path)

        class Header(tarfile.TarInfo):
            """Behind a damaged header reading goes on with the next whole one; the damage is named."""

            @classmethod
            def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Header:
                try:
                    header = super().frombuf(buf, encoding, errors)
                    if header.size < 0:
                        raise tarfile.InvalidHeaderError("negative size")  # type: ignore[attr-defined]
                except tarfile.InvalidHeaderError:  # type: ignore[attr-defined]
                    damaged("a damaged header: what stands behind it is lost")
                    raise
                return header

        bounded = cast(BinaryIO, _Bounded(stream))
        archive = tarfile.open(fileobj=bounded, mode="r:", ignore_zeros=True, tarinfo=Header)  # noqa: SIM115 - nothing to close
        while member := archive.next():
            vars(archive)["members"] = []  # it would keep all of them
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
                    self._problem(path, "encrypted files in it were left out: unpack it, and name the directory")
                elif member.compress_type not in _METHODS:
                    self._problem(path, "files in it that are neither stored nor deflated were left out: unpack it")
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
                self._problem(inside, f"the debug server got no record of this rank: {said}")
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
            self._problem(path, f"{size} bytes: more than the {most} MiB that are read of one file in an archive")
            return
        for kind, written in self._written(path, read):
            if kind in COMPRESSED | ARCHIVES:
                yield from self._opened(path, written.file, deep)
                written.file.unlink()
            else:
                yield replace(written, written_ns=written_ns)

    def _written(self, path: str, read: Callable[[int], bytes]) -> Iterator[tuple[FileKind | None, ArchiveMember]]:
        """What `read` gives, as a file with its kind; nothing if it is of no use, or damaged from its beginning."""
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
                        self._problem(path, f"more than the {most} MiB that are read of one file in an archive")
                        whole = False
                        break
        except TooMuch as error:
            spent, whole = error, False
        except _DAMAGES as error:
            self._problem(path, f"damaged or cut off ({str(error)[:_MOST_SAID]})")
            whole = False
        # The beginning of a log is worth something, that of a record that is too large is not.
        useless = (spent or size > self._budget.member_bytes) and kind not in (None, *ARCHIVES)
        if (size and not useless) or (whole and kind is FileKind.EMPTY):
            # What it had come to when the budget was spent may still be read: members of a tar archive come first.
            yield kind, ArchiveMember(path, file, size, whole=whole)
        else:
            file.unlink()
        if spent:
            raise spent

    def _new_file(self) -> Path:
        self._number += 1
        return self._scratch / str(self._number)

    def _inside(self, path: str, name: str) -> str:
        """The label of a member, with a number behind it where an archive holds a name twice."""
        if name.startswith("/") or ".." in name.split("/"):
            self._problem(
                path, "it holds names that lead out of it; they are labels here, and nothing is unpacked there"
            )
        label = path + SEPARATOR + shown(name.removeprefix("./"))
        number = self._names[label] = self._names.get(label, 0) + 1
        return label if number == 1 else f"{label}#{number}"

    def _problem(self, path: str, words: object) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems[f"{path}: {words}"] = None


class _Bounded:
    """A file that refuses to give very much at once: hostile archives claim directories and names of gigabytes."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell = file.seek, file.tell
        self._read = file.read

    def read(self, size: int = -1) -> bytes:
        """The next bytes. Raises ValueError."""
        data = self._read(_MOST_RECORD_BYTES + 1 if size < 0 else min(size, _MOST_RECORD_BYTES + 1))
        if len(data) > _MOST_RECORD_BYTES:
            raise ValueError(f"a record in it is larger than the {_MOST_RECORD_BYTES >> 20} MiB that are read")
        return data

    def seekable(self) -> bool:
        """Archives are files."""
        return True


class _Plain:
    """The content of a compressed file: any number of streams, one behind the other.

    `gzip` reads the name in a header byte by byte however long it is, and readers of zstandard end like a whole file
    where the input is cut off; so the decoders are fed here, all in one way.
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
        """Some of the next bytes, at most as many as asked for. Raises EOFError or an error of the format."""
        while not self._rest and self._goes_on():
            data, self._data = self._data, b""
            self._rest = memoryview(self._decoder.decompress(data))
        chunk, self._rest = bytes(self._rest[:count]), self._rest[count:]
        self._budget.spend(len(chunk))
        return chunk

    def _goes_on(self) -> bool:
        """Whether there are bytes to decode, which lie ready then. What follows the last stream is padding."""
        if self._decoder.eof:
            self._data = self._decoder.unused_data or self._file.read(self._feed_bytes)
            if len(self._data) < len(self._magic):
                self._data += self._file.read(self._feed_bytes)
            if not self._data or not self._data.startswith(self._magic):
                return False
            self._frames += 1
            if self._frames > _MOST_FRAMES:
                raise ValueError(f"it consists of more than {_MOST_FRAMES} streams: nothing that a job wrote")
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
"""How to make a decoder, how many bytes to give it at once, and how a further stream begins. All that is given at once
is unpacked at once: 4 bytes of zstd can stand for 128 KiB, those of the others for less."""
