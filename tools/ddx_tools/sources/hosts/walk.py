"""Lists the files below a directory.

Job directories can contain anything: checkpoints, a million small files, loops of links, pipes that block their reader.
So the walk is bounded in number and time, follows no links to directories, lists only regular files, opens none, and
reports what it left out. Hidden files and directories are skipped unless named.
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
"""Names that come first if there are too many files. A file's kind is never decided by its name."""
_BETWEEN_CLOCKS = 256

Entry = tuple[str, int, int]
"""Path, size in bytes, and time of last modification in nanoseconds since the epoch."""


@dataclass
class Walked:
    """The files below a directory, sorted, and what was left out, as lines for a person."""

    files: list[Entry] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    links: int = 0
    """The number of links to directories or to nothing."""

    def to_json(self) -> bytes:
        """The list as JSON for `Host.walk`."""
        passed_over = []
        if self.links:
            passed_over.append(f"{self.links} links that do not lead to a file (links to directories are not followed)")
        return json.dumps({"files": self.files, "passed_over": passed_over, "left_out": self.left_out}).encode()


def walk(top: str, *, most: int, timeout_s: float) -> Walked:
    """List the regular files below a directory, or the path itself if it is a file. Raises OSError if there is none."""
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
        found.left_out.append(
            f"{top}: {nameless} files whose names are not UTF-8. Rename them so that they can be read."
        )
    if count - nameless > len(found.files):
        found.left_out.append(f"{top}: {len(found.files)} of {count} files were examined. Name a narrower path.")
    return found


def _is_text(path: str) -> bool:
    """Whether a bundle can store the name."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _entries(top: str, found: Walked, timeout_s: float) -> Iterator[Entry]:
    """Yield regular files and links to them, breadth first."""
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
                        found.left_out.append(f"{top}: it could not be searched completely within {timeout_s:g} s")
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
    except OSError:  # a loop of links, or a directory that may not be entered
        return False
