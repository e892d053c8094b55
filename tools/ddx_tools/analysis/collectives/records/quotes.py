"""Evidence, source lines and group names for findings about recorded operations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddx_tools.analysis.collectives.findings import FindingPlace, Where
from ddx_tools.analysis.collectives.records.records import Entry, Group
from ddx_tools.model.diagnosis import Location, distinct

BASIS = "flight_records"
_MOST_EVIDENCE = 6
_MOST_PLACES = 64


def shown(entries: Sequence[Entry], places: Sequence[Entry] | None = None) -> FindingPlace:
    """Return where a finding points: evidence from the first entries, and the user's source lines.

    The lines are the distinct ones, in order, of `entries`, or of `places` if given.
    """
    wanted = entries if places is None else places
    found = distinct(entry.location() for entry in wanted[:_MOST_PLACES])
    return FindingPlace([entry.evidence() for entry in entries[:_MOST_EVIDENCE]], found)


def locations(entries: Sequence[Entry]) -> list[Location]:
    """The distinct user lines of entries, in order."""
    return shown((), entries).locations


def where(group: Group | str | None, seq: int | None = None, operation: str | None = None) -> Where:
    """Return the `Where` that findings from flight records use for a collective of a group.

    `group` is a group or its label, None if it has no name. `seq` and `operation` are None if unknown.
    """
    return Where(BASIS, group.label if isinstance(group, Group) else group, seq, operation)


_NAMELESS = ("", "undefined")


def kind_of(group: Group) -> str:
    """The key shared by groups with the same role: their description, or their size if they have none."""
    if group.description not in _NAMELESS:
        return group.description
    return "" if group.members is None else f"{len(group.members)} ranks"


def label_of(groups: Iterable[Group]) -> str:
    """A name for groups of one kind: `mesh_tp`, `group 7`, or `37 groups of 8 ranks`."""
    distinct = {group.id: group for group in groups}
    first = next(iter(distinct.values()))
    if len(distinct) == 1 or first.description not in _NAMELESS:
        return first.label
    return f"{len(distinct)} groups{f' of {kind_of(first)}' if first.members is not None else ''}"
