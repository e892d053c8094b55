"""The unpacked members of archives, by their names, kept as long as their host is in use."""

from __future__ import annotations

import json
import shutil
import weakref
from pathlib import Path
from typing import Any

from ddx_tools.sources.archives import UnpackBudget, Unpacking
from ddx_tools.sources.packed_bundle import PACKED_SUFFIX, begins_as_a_bundle
from ddx_tools.sources.temporary import temporary_directory

_OF_UNNAMED = {"most_bytes": 1 << 30, "most_members": 10_000}
"""Limits for an archive that the user did not name: it may be a data set or a checkpoint."""


class Unpacked:
    """A private directory with the members of archives, deleted with its owner."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._members: dict[str, Path] = {}

    def file(self, path: str) -> Path | None:
        """The file with a member's bytes; None if no unpacked archive has a member of that name."""
        return self._members.get(path)

    def unpack(self, path: str, file: Path, *, named: bool) -> bytes:
        """Unpack the archive named `path`; return the list of members for `Host.unpack`. Raises OSError."""
        # `ddx run` leaves bundles beside the logs that they were made from.
        if path.endswith(PACKED_SUFFIX) and begins_as_a_bundle(file):
            return _listed([], [], [f"{path}: a ddx bundle. To read it, name only the bundle."])
        if self._directory is None:
            place = temporary_directory("unpacked")
            weakref.finalize(self, place.cleanup)
            self._directory = Path(place.name)
        budget = UnpackBudget(file.stat().st_size, **({} if named else _OF_UNNAMED))
        budget.most_bytes = min(budget.most_bytes, shutil.disk_usage(self._directory).free // 2)
        way = Unpacking(self._directory, budget)
        members = []
        for member in way.members(path, file):
            self._members[member.path] = member.file
            members.append([member.path, member.size_bytes, member.written_ns, dict(member.facts), member.whole])
        others = way.passed_over
        passed_over = [f"{others} files in {path} that are neither texts nor records"] if others else []
        return _listed(members, list(way.problems), passed_over)


def _listed(members: list[list[Any]], problems: list[str], passed_over: list[str]) -> bytes:
    return json.dumps({"members": members, "problems": problems, "passed_over": passed_over}).encode()
