"""Flight records inside archives and compressed files, member by member, in bounded memory and never on disk.

nccl_trace_rank_3.gz            a compressed record
dumps.tar.gz!/attempt_0/rank_3  a member; names of members are labels and no paths, whatever they hold
dumps.tar!/node17.zip!/rank_3   a member of an archive in an archive; deeper ones are left closed
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from ddx_tools.errors import UnreadableInput
from ddx_tools.formats.debug_pages import records_of_page
from ddx_tools.formats.file_kinds import ARCHIVES, COMPRESSED, HEAD_BYTES, Kind, kind_of
from ddx_tools.formats.fr_pickle import MAX_BYTES
from ddx_tools.formats.names import shown
from ddx_tools.formats.tar_members import tar_members
from ddx_tools.formats.unpacking import Budget, ByteStream, PlainStream, TooMuch, UnpackedStream, unpacked
from ddx_tools.formats.zip_members import zip_members

SEPARATOR = "!/"
"""Between an archive and a member of it, as in the URLs of Java's archives."""

MAX_ARCHIVE_BYTES = 2 << 30
_MOST_ARCHIVES_DEEP = 2
_MOST_PROBLEMS = 20
_MOST_SAID = 200


@dataclass(frozen=True)
class Limits:
    """What is read of one archive at most."""

    unpacked_bytes: int = 8 << 30
    """Records of 10,000 ranks with 2,000 entries each are 5 GiB. Unpacking takes 3 s a GiB."""
    ratio: int = 500
    """Records of a whole job, packed with `zstd -19 --long`, come to less."""
    members: int = 500_000
    member_bytes: int = MAX_BYTES


@dataclass(frozen=True)
class Member:
    """A file inside an archive."""

    path: str
    """What a person calls it: the path of the archive, and inside it."""
    kind: Kind
    data: bytes
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What a page of the debug server says of a record besides: `host`, `only_active`; a tar archive: `written_ns`."""


class Archive:
    """An archive or a compressed file, to be gone through as often as needed.

    `path` is what a person calls it, `content` its bytes or the file that holds them.
    """

    def __init__(self, path: str, content: Path | bytes, limits: Limits = Limits()) -> None:
        self.path = path
        self.problems: dict[str, None] = {}
        """What could not be read, each once: lines for a person."""
        self.exhausted = False
        """A limit ended the reading: more may lie behind."""
        self.seen: Counter[Kind] = Counter()
        """How many files of each kind the last way through came by, whether they were asked for or not."""
        self._content = content
        self._limits = limits

    def members(self, kinds: Collection[Kind], *, heads_only: bool = False) -> Generator[Member, None, None]:
        """The files of some kinds in it, in order. What is damaged or too much ends up in `problems`.

        With `heads_only` of each no more than its first bytes.
        """
        self.seen = Counter()
        try:
            with io.BytesIO(self._content) if isinstance(self._content, bytes) else self._content.open("rb") as file:
                size = file.seek(0, io.SEEK_END)
                file.seek(0)
                budget = Budget(size, self._limits.unpacked_bytes, self._limits.ratio, self._limits.members)
                walk = _Walk(kinds, heads_only, self._limits.member_bytes, budget, self.seen, self._problem)
                yield from walk.opened(file, self.path, archives=0)
        except TooMuch as error:
            self.exhausted = True
            self._problem(self.path, error)
        except OSError as error:
            self._problem(self.path, error.strerror or str(error))

    def _problem(self, path: str, words: object) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems[f"{path}: {words}"] = None


class _Walk:
    """One way through an archive."""

    def __init__(
        self,
        kinds: Collection[Kind],
        heads_only: bool,
        member_bytes: int,
        budget: Budget,
        seen: Counter[Kind],
        problem: Callable[[str, object], None],
    ) -> None:
        self._kinds = kinds
        self._heads_only = heads_only
        self._member_bytes = member_bytes
        self._budget = budget
        self._seen = seen
        self._problem = problem
        self._paths: dict[str, int] = {}

    def opened(self, file: BinaryIO, path: str, archives: int) -> Iterator[Member]:
        """The members of a file that lies in so many archives; the file itself if it is only compressed."""
        kind = kind_of(file.read(HEAD_BYTES))
        file.seek(0)
        try:
            if kind in COMPRESSED:
                yield from self._unpacked(unpacked(file, kind, self._budget), path, archives)
            elif kind in ARCHIVES and archives == _MOST_ARCHIVES_DEEP:
                self._problem(path, "an archive in an archive in an archive: it was not opened. Unpack it.")
            elif kind is Kind.TAR:
                yield from self._tar(PlainStream(file), path, archives)
            elif kind is Kind.ZIP:
                yield from self._zip(file, path, archives)
            elif kind is Kind.PAGE:
                yield from self._page(file, path)
        except TooMuch:
            raise
        except UnreadableInput as error:
            self._problem(path, error)

    def _unpacked(self, stream: UnpackedStream, path: str, archives: int) -> Iterator[Member]:
        head = stream.peek(HEAD_BYTES)
        kind = kind_of(head)
        if kind is Kind.TAR and archives < _MOST_ARCHIVES_DEEP:
            yield from self._tar(stream, path, archives)
            stream.finish()
        elif kind is None:
            return
        elif kind in ARCHIVES | COMPRESSED:
            self._problem(path, "packed more than once: it was not opened. Unpack it.")
        elif not self._is_wanted(kind):
            return
        elif self._heads_only:
            yield Member(path, kind, head)
        else:
            data = stream.read(self._member_bytes + 1)
            if len(data) > self._member_bytes:
                self._problem(path, self._too_large("more"))
            else:
                yield Member(path, kind, data)
                stream.finish()

    def _tar(self, stream: ByteStream, path: str, archives: int) -> Iterator[Member]:
        for member in tar_members(stream, self._budget, partial(self._problem, path)):
            facts = {"written_ns": member.written_ns}
            yield from self._member(stream, self._inside(path, member.name), member.size, archives + 1, facts)

    def _zip(self, file: BinaryIO, path: str, archives: int) -> Iterator[Member]:
        for name, size, content in zip_members(file, self._budget, partial(self._problem, path)):
            inside = self._inside(path, name)
            try:
                yield from self._member(content, inside, size, archives + 1, {})
            except TooMuch:
                raise
            except UnreadableInput as error:
                self._problem(inside, error)

    def _page(self, file: BinaryIO, path: str) -> Iterator[Member]:
        for record in records_of_page(file, self._member_bytes):
            self._budget.enter()
            inside = self._unique(f"{path}{SEPARATOR}rank_{record.rank}")
            kind = kind_of(record.data[:HEAD_BYTES])
            if kind is not Kind.DUMP:
                said = shown(record.data[:_MOST_SAID].decode("utf-8", "replace"))
                self._problem(inside, f"the debug server got no record of this rank: {said}")
            elif self._is_wanted(kind):
                yield Member(inside, kind, record.data, {"host": record.host, "only_active": record.only_active})

    def _member(
        self, stream: ByteStream, path: str, size: int, archives: int, facts: Mapping[str, Any]
    ) -> Iterator[Member]:
        head = stream.read(min(size, HEAD_BYTES))
        kind = kind_of(head)
        packed = kind in ARCHIVES | COMPRESSED
        if kind is None or len(head) < min(size, 1) or not (packed or self._is_wanted(kind)):
            return
        if self._heads_only and not packed:
            yield Member(path, kind, head)
            return
        if size > self._member_bytes:
            self._problem(path, self._too_large(f"{size} bytes: more"))
            return
        data = head + stream.read(size - len(head))
        if packed:
            yield from self.opened(io.BytesIO(data), self._unique(path), archives)
        else:
            yield Member(self._unique(path), kind, data, facts)

    def _is_wanted(self, kind: Kind) -> bool:
        self._seen[kind] += 1
        return kind in self._kinds

    def _inside(self, path: str, name: str) -> str:
        """The label of a member."""
        if name.startswith("/") or ".." in name.split("/"):
            self._problem(path, "it holds names that lead out of it; they are labels here, and nothing is unpacked")
        return path + SEPARATOR + shown(name.removeprefix("./"))

    def _unique(self, path: str) -> str:
        """The path, with a number behind it where an archive holds a name twice."""
        number = self._paths[path] = self._paths.get(path, 0) + 1
        return path if number == 1 else self._unique(f"{path}#{number}")

    def _too_large(self, size: str) -> str:
        return f"{size} than the {self._member_bytes >> 20} MiB that are read of one file in an archive"
