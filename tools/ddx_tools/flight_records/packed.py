"""Flight records inside archives and compressed files, opened while rows are made of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from ddx_tools.formats.archives import Archive
from ddx_tools.formats.file_kinds import Kind
from ddx_tools.formats.fr_origin import is_due, unpacked_name
from ddx_tools.probe import RawItem

_DUMPS = frozenset({Kind.DUMP, Kind.PICKLE, Kind.EMPTY})


class PackedRecords:
    """The members of the archives of a capture; `kind` is what an item of a dump is called.

    An archive is gone through twice: side-cars may come behind the dumps that they are of.
    """

    def __init__(self, items: Sequence[RawItem], kind: str) -> None:
        self._kind = kind
        self._archives = [
            (item, Archive(str(item.facts["path"]), item.data if item.file is None else Path(item.file)))
            for item in items
        ]
        self._dumps = [0] * len(items)

    def headers(self) -> Iterator[tuple[str, bytes]]:
        """Path and bytes of each side-car, named as if it were not compressed. To be asked first."""
        for index, (_, archive) in enumerate(self._archives):
            for member in archive.members({Kind.HEADER}):
                yield unpacked_name(member.path), member.data
            self._dumps[index] = sum(archive.seen[kind] for kind in _DUMPS)

    def dumps(self) -> Iterator[RawItem]:
        """The dumps as if each had been found by itself. Few are in memory at a time."""
        for (item, archive), count in zip(self._archives, self._dumps, strict=True):
            # What comes behind the last one is not unpacked again.
            for member in islice(archive.members(_DUMPS), count):
                if member.kind is Kind.DUMP or is_due(member.path):
                    source = item.source + member.path.removeprefix(archive.path)
                    facts = {**item.facts, **member.facts, "path": member.path}
                    yield RawItem(self._kind, member.data, source, facts)

    def problems(self) -> Iterator[str]:
        """What could not be read, once all was gone through."""
        for _, archive in self._archives:
            yield from archive.problems
