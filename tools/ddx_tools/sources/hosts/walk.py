"""The files below a directory.

Directories of jobs hold anything: checkpoints, a million small files, links in circles, pipes that block whoever
opens them. So walking is bounded in number and in time, follows no link to a directory, lists regular files only,
opens none, and says what it left out. Hidden files and directories are passed over, unless one is named.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

_LIKELY = re.compile(r"rank|trace|dump|log|err|out", re.IGNORECASE)
"""Names that come first where there are too many files. What a file is, its name never decides."""
_BETWEEN_CLOCKS = 256

Entry = tuple[str, int, int]
"""Path, size in bytes, and when it was last written to, in nanoseconds since the epoch."""


@dataclass
class Walked:
    """The files below a directory, sorted, and what was not listed: lines for a person."""

    files: list[Entry] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    links: int = 0
    """To directories, or to nothing."""

    def to_json(self) -> bytes:
        """What `Host.walk` reads."""
        passed_over = []
        if self.links:
            passed_over.append(f"{self.links} links that lead to no file (links to directories are not followed)")
        return json.dumps({"files": self.files, "passed_over": passed_over, "left_out": self.left_out}).encode()


def walk(top: str, *, most: int, timeout_s: float) -> Walked:
    """The regular files below a directory; the path itself if it is a file. Raises OSError if it is not there."""
    status = os.stat(top)  # noqa: PTH116 - Path raises where a name cannot be one
    found = Walked()
    if not os.path.isdir(top):  # noqa: PTH112
        found.files = [(top, status.st_size, status.st_mtime_ns)]
        return found
    likely: list[Entry] = []
    others: list[Entry] = []
    count = nameless = 0
    for entry in _entries(top, found, timeout_s):
        count += 1
        if not entry[0].isascii() and not _is_text(entry[0]):
            nameless += 1
            continue
        bucket = likely if _LIKELY.search(entry[0], entry[0].rindex("/") + 1) else others
        if len(bucket) < most:
            bucket.append(entry)
    found.files = sorted([*likely, *others][:most])
    if nameless:
        found.left_out.append(f"{top}: {nameless} files whose names are no UTF-8 text. Rename them to have them read.")
    if count - nameless > len(found.files):
        found.left_out.append(f"{top}: {len(found.files)} of {count} files were looked at. Name a narrower path.")
    return found


def _is_text(path: str) -> bool:
    """Whether a bundle can keep the name."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _entries(top: str, found: Walked, timeout_s: float) -> Iterator[Entry]:
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
                        status = entry.stat()
                        yield entry.path, status.st_size, status.st_mtime_ns
                    elif entry.is_symlink():
                        found.links += 1
        except OSError as error:
            found.left_out.append(f"{folder}: {(error.strerror or str(error)).lower()}")


def _leads_to_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link in circles, or through a directory that may not be entered
        return False
