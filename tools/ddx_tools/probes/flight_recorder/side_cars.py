"""Reads JSON files beside dumps for what the dumps lack: rank, host, time, group members."""

from __future__ import annotations

import json
from dataclasses import replace

from ddx_tools.parsers.flight_records.fr_origin import DumpOrigin, GroupMembers, is_header, origin_of_header
from ddx_tools.sources.kinds import plain_name

_MOST_MEMBERS = 16 << 20
"""The maximum number of members in all distinct groups. A mesh of 100,000 ranks in four dimensions has half a
million."""


class SideCars:
    """The headers of dumps, looked up by the dump's name.

    The headers of thousands of ranks list the same groups with thousands of members, so each group is kept once.
    """

    def __init__(self) -> None:
        self._by_file: dict[str, DumpOrigin] = {}
        self._by_stem: dict[str, DumpOrigin] = {}
        self._groups: dict[GroupMembers, GroupMembers] = {}
        self._members = 0

    def add(self, path: str, data: bytes) -> str | None:
        """Read a JSON file that describes a dump beside it, and keep what it states: rank, host, time, groups.

        Return a text about what is damaged or was left out; None if nothing was, or if the file describes no dump.
        """
        try:
            header = json.loads(data)
        except (ValueError, RecursionError):
            return "damaged or truncated JSON"
        if not is_header(header):
            return None
        read = origin_of_header(header, path)
        said = replace(read, groups=tuple(group for group in map(self._kept, read.groups) if group))
        folder, _, name = plain_name(path).rpartition("/")
        parts = header.get("parts")
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and isinstance(part.get("file"), str):
                self._by_file[f"{folder}/{part['file']}"] = said
        self._by_stem[f"{folder}/{name.removesuffix('.json').removesuffix('.header')}"] = said
        lost = len(read.groups) - len(said.groups)
        return f"{lost} groups were left out: the headers list more members than the limit" if lost else None

    def of(self, path: str) -> DumpOrigin | None:
        """Return the origin of a dump, from a header that names its file, or whose own name matches the file's up to a
        dot."""
        path = plain_name(path)
        if said := self._by_file.get(path):
            return said
        folder, _, name = path.rpartition("/")
        parts = name.split(".")
        stems = (f"{folder}/{'.'.join(parts[:length])}" for length in range(len(parts), 0, -1))
        return next((self._by_stem[stem] for stem in stems if stem in self._by_stem), None)

    def _kept(self, group: GroupMembers) -> GroupMembers | None:
        if group not in self._groups:
            self._members += len(group.ranks or ()) + 1
            if self._members > _MOST_MEMBERS:
                return None
        return self._groups.setdefault(group, group)
