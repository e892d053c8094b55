"""Entries of many dumps as columns: plain arrays, which processes can pass to each other, and an Arrow table made of
them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from ddx_tools.parsers.flight_records.fr_entries import MOST_MS, TIMES, UNKNOWN, EntryColumns


class EntryKind(NamedTuple):
    """The values that many entries of one dump share."""

    membership: int
    call: int
    state: str | None
    finished: bool
    """Whether the entry's own state says that it finished."""
    last_completed: int | None
    """The counter of its group: this number and all before it are finished. None if the counter also counts other
    things."""
    retired: bool
    """Whether its watchdog no longer watches it: it finished, or the watchdog gave up on it."""


@dataclass
class EntryRows:
    """Rows of `fr_entries`, as columns. Unknown values are encoded as in `EntryColumns`."""

    numbers: dict[str, array[int]] = field(default_factory=dict)
    duration_ms: array[float] = field(default_factory=lambda: array("d"))
    kind: array[int] = field(default_factory=lambda: array("i"))
    """Indices into `kinds`, counted from the dump's first kind."""
    site: array[int] = field(default_factory=lambda: array("i"))
    """Indices into `sites`, counted from the dump's first site."""
    kinds: list[EntryKind] = field(default_factory=list)
    sites: list[int | None] = field(default_factory=list)
    dumps: list[tuple[int, int, int]] = field(default_factory=list)
    """For each dump: its number of entries, and the indices of its first kind and first site."""

    def __len__(self) -> int:
        return len(self.kind)

    def add(self, columns: EntryColumns, kinds: Sequence[EntryKind], sites: Sequence[int | None]) -> None:
        """Add the entries of a dump; `kinds` and `sites` are the table values for those in `columns`."""
        entries = (columns.numbers, columns.duration_ms, columns.kind, columns.site)
        self.add_all(EntryRows(*entries, [*kinds], [*sites], [(len(columns), 0, 0)]))

    def add_all(self, other: EntryRows) -> None:
        """Append the entries of another `EntryRows`."""
        for name, values in other.numbers.items():
            self.numbers.setdefault(name, array("q")).extend(values)
        self.duration_ms += other.duration_ms
        self.kind += other.kind
        self.site += other.site
        kinds, sites = len(self.kinds), len(self.sites)
        self.dumps += [(entries, kinds + kind, sites + site) for entries, kind, site in other.dumps]
        self.kinds += other.kinds
        self.sites += other.sites

    def table(self) -> Any:
        """Return an Arrow table with the columns of `fr_entries`; unknown values are null."""
        import pyarrow as pa
        import pyarrow.compute as pc

        kind = self._from_the_first(self.kind, [kinds for _, kinds, _ in self.dumps])
        site = self._from_the_first(self.site, [sites for _, _, sites in self.dumps])

        def of_kind(field_of_kind: int, arrow_type: Any) -> Any:
            return pc.take(pa.array([each[field_of_kind] for each in self.kinds], arrow_type), kind)

        membership, call, finished, completed, retired = map(
            of_kind, (0, 1, 3, 4, 5), (pa.int64(), pa.int64(), pa.bool_(), pa.int64(), pa.bool_())
        )
        states = pa.array([each.state for each in self.kinds], pa.string()).dictionary_encode()
        numbers = {name: _known_numbers(values, name) for name, values in self.numbers.items()}
        counted = pc.fill_null(pc.less_equal(numbers["seq"], completed), False)
        return pa.table(
            {
                "membership": membership,
                **numbers,
                "call": call,
                "site": pc.take(pa.array(self.sites, pa.int64()), site),
                "state": pc.take(states, kind),
                "done": pc.or_(finished, counted),
                "retired": retired,
                "duration_ms": _known_durations(self.duration_ms),
            }
        )

    def _from_the_first(self, indices: array[int], firsts: Sequence[int]) -> Any:
        """The dumps' indices as one Arrow array, counted from the very first one."""
        import pyarrow as pa
        import pyarrow.compute as pc

        shifts = array("i")
        for (entries, _, _), first in zip(self.dumps, firsts, strict=True):
            shifts += array("i", [first]) * entries
        return pc.add(_arrow(indices, pa.int32()), _arrow(shifts, pa.int32()))


def _arrow(values: array[Any], arrow_type: Any, known: Any = None) -> Any:
    """An Arrow array over the same memory; the booleans in `known` mark the values that are not null."""
    import pyarrow as pa

    validity = None if known is None else known.buffers()[1]
    return pa.Array.from_buffers(arrow_type, len(values), [validity, pa.py_buffer(values)])


def _known_numbers(values: array[int], name: str) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    unknown = _scalar(0 if name in TIMES else UNKNOWN, pa.int64())
    return _arrow(values, pa.int64(), pc.not_equal(_arrow(values, pa.int64()), unknown))


def _known_durations(values: array[float]) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pc.less(pc.abs(_arrow(values, pa.float64())), _scalar(MOST_MS, pa.float64()))
    return _arrow(values, pa.float64(), known)


@cache
def _scalar(value: float, arrow_type: Any) -> Any:
    """A cached Arrow scalar: for each Python value it converts, pyarrow searches for packages that may be missing."""
    import pyarrow as pa

    return pa.scalar(value, arrow_type)
