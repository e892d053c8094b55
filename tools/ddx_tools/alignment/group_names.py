"""How a finding names the group, or the groups, that it is about."""

from __future__ import annotations

from collections.abc import Iterable

from ddx_tools.alignment.records import Group

_NAMELESS = ("", "undefined")


def kind_of(group: Group) -> str:
    """What groups of the same role share: their description; their size, where nothing describes them."""
    if group.description not in _NAMELESS:
        return group.description
    return "" if group.members is None else f"{len(group.members)} ranks"


def label_of(groups: Iterable[Group]) -> str:
    """The name of groups of one kind: `mesh_tp`, `group 7`, or `37 groups of 8 ranks`."""
    distinct = {group.id: group for group in groups}
    first = next(iter(distinct.values()))
    if len(distinct) == 1 or first.description not in _NAMELESS:
        return first.label
    return f"{len(distinct)} groups{f' of {kind_of(first)}' if first.members is not None else ''}"
