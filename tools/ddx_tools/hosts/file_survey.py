"""The files below a directory, and which of them may hold flight records, told by their first bytes.

Directories of jobs hold anything: checkpoints, a million small files, links in circles, pipes that block whoever
opens them. So looking is bounded in number and in time, follows no link to a directory, opens regular files only,
and says what it left out. Hidden files and directories are passed over, unless one is named.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from ddx_tools.formats.archives import Archive, Limits
from ddx_tools.formats.file_kinds import ARCHIVES, COMPRESSED, HEAD_BYTES, Kind, kind_of
from ddx_tools.formats.fr_origin import is_due

_LIKELY = re.compile(r"rank|trace|dump", re.IGNORECASE)
"""Names that come first where there are too many files. What a file is, its name never decides."""
_LOOKED_INTO = Limits(unpacked_bytes=16 << 20, members=64)
"""How far an archive is looked into: data sets and checkpoints are kept in archives, too."""
_SOUGHT = frozenset({Kind.DUMP, Kind.HEADER, Kind.PICKLE, Kind.EMPTY})
_BETWEEN_CLOCKS = 256


@dataclass(frozen=True)
class Surveyed:
    """A file that may hold flight records, or tell of one."""

    path: str
    kind: Kind | None
    """None for a file that cannot be read."""
    trouble: str = ""
    """Why not, in words."""
    written_ns: int | None = None
    """When it was last written to."""


@dataclass
class Survey:
    """The files below a directory, those of them that matter, and what was not looked at: lines for a person."""

    files: list[str] = field(default_factory=list)
    matter: list[Surveyed] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    links: int = 0
    """To directories, or to nothing."""
    closed: int = 0
    """Archives without a flight record as far as they were looked into."""

    def to_json(self) -> bytes:
        """What `Host.survey` reads."""
        passed_over = []
        if self.links:
            passed_over.append(f"{self.links} links that lead to no file (links to directories are not followed)")
        if self.closed:
            passed_over.append(
                f"{self.closed} archives, in the first {_LOOKED_INTO.members} members of which is no flight record "
                "(name one to have it read whole)"
            )
        matter = [[one.path, one.kind, one.trouble] for one in self.matter]
        written = {one.path: one.written_ns for one in self.matter if one.written_ns is not None}
        return json.dumps(
            {
                "files": len(self.files),
                "matter": matter,
                "written_ns": written,
                "passed_over": passed_over,
                "left_out": self.left_out,
            }
        ).encode()


def list_files(top: str, *, most: int, timeout_s: float) -> Survey:
    """The regular files below a directory, sorted; the path itself if it is no directory."""
    if not os.path.isdir(top):  # noqa: PTH112 - Path raises where a name cannot be one
        return Survey([top])
    found = Survey()
    likely: list[str] = []
    others: list[str] = []
    count = 0
    nameless = 0
    for path in _walk(top, found, timeout_s):
        count += 1
        if not path.isascii() and not _is_text(path):
            nameless += 1
            continue
        bucket = likely if _is_likely(path) else others
        if len(bucket) < most:
            bucket.append(path)
    found.files = sorted([*likely, *others][:most])
    if nameless:
        found.left_out.append(f"{top}: {nameless} files whose names are no UTF-8 text. Rename them to have them read.")
    if count - nameless > len(found.files):
        found.left_out.append(f"{top}: {len(found.files)} of {count} files were looked at. Name a narrower path.")
    return found


def look_at_files(top: str, *, most: int, timeout_s: float) -> Survey:
    """The same, and which of them matter. Raises OSError if `top` is a file that cannot be read."""
    found = list_files(top, most=most, timeout_s=timeout_s)
    if found.files == [top]:
        head, written_ns = _head(top)
        kind = kind_of(head)
        found.matter += [Surveyed(top, kind, written_ns=written_ns)] if kind else []
        return found
    until = time.monotonic() + timeout_s
    # Where time is short, names say what to look at first.
    for count, path in enumerate(sorted(found.files, key=lambda path: not _is_likely(path))):
        if count % _BETWEEN_CLOCKS == 0 and time.monotonic() > until:
            found.left_out.append(f"{top}: {len(found.files) - count} files were not opened within {timeout_s:g} s")
            break
        _look_at(path, found)
    found.matter.sort(key=lambda surveyed: surveyed.path)
    return found


def _is_text(path: str) -> bool:
    """Whether a bundle can keep the name."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_likely(path: str) -> bool:
    return _LIKELY.search(path, path.rindex("/") + 1) is not None


def _walk(top: str, found: Survey, timeout_s: float) -> Iterator[str]:
    """Regular files and links to such, breadth first."""
    until = time.monotonic() + timeout_s
    folders = deque([top])
    count = 0
    while folders:
        folder = folders.popleft()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    count += 1
                    if count % _BETWEEN_CLOCKS == 0 and time.monotonic() > until:
                        found.left_out.append(f"{top}: not all of it was gone through within {timeout_s:g} s")
                        return
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif _leads_to_file(entry):
                        yield entry.path
                    elif entry.is_symlink():
                        found.links += 1
        except OSError as error:
            found.left_out.append(f"{folder}: {error.strerror or error}")


def _leads_to_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link in circles, or through a directory that may not be entered
        return False


def _look_at(path: str, found: Survey) -> None:
    """Note a file in the survey if it matters. One that is due and cannot be read does."""
    try:
        head, written_ns = _head(path)
    except FileNotFoundError:
        return
    except OSError as error:
        if is_due(path):
            found.matter.append(Surveyed(path, None, (error.strerror or str(error)).lower()))
        return
    kind = kind_of(head)
    if kind in COMPRESSED | ARCHIVES:
        _look_into(path, kind, found)
    elif kind is not None and _matters(kind, path):
        found.matter.append(Surveyed(path, kind, written_ns=written_ns))


def _look_into(path: str, kind: Kind, found: Survey) -> None:
    archive = Archive(path, Path(path), _LOOKED_INTO)
    with closing(archive.members(_SOUGHT, heads_only=True)) as members:
        holds = any(_matters(member.kind, member.path) for member in members)
    # Of one that is damaged nobody knows what it held; its name may tell.
    if holds or (archive.problems and not archive.exhausted and _is_likely(path)):
        found.matter.append(Surveyed(path, kind))
    elif archive.exhausted:
        found.closed += 1


def _matters(kind: Kind, path: str) -> bool:
    return kind in (Kind.DUMP, Kind.HEADER, Kind.TABLE) or is_due(path)


def _head(path: str) -> tuple[bytes, int]:
    """The first bytes of a regular file, and when it was last written to.

    Raises OSError; what became a pipe meanwhile does not block.
    """
    status = os.stat(path)  # noqa: PTH116 - opening a device can do things
    if not stat.S_ISREG(status.st_mode):
        raise FileNotFoundError(errno.ENOENT, "not a regular file", path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(descriptor, HEAD_BYTES), status.st_mtime_ns
    finally:
        os.close(descriptor)
