"""The process groups of a job as one small table: how far each got, which ranks are behind, which wait in what.

Groups of one kind (the same description and layout, such as all `mesh_tp`) that behave the same way share a row. The
most telling rows come first, so that a limit cuts the least.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddx_tools.analysis.collectives.records.records import Group, Records
from ddx_tools.analysis.collectives.records.usual_waits import SETTLED_S
from ddx_tools.analysis.mesh.groups import axis_names
from ddx_tools.evidence.store import Store
from ddx_tools.model.files.names import shown
from ddx_tools.model.grouping import gathered
from ddx_tools.model.rank_spans import rank_spans, step_of

_NAMELESS = ("", "undefined")
_MOST_ALONE = 4
"""Up to this many groups that differ in the same way get a row each; more of them share one."""
_MOST_PARTS = 4
_MOST_NAME = 60
_MOST_SPANS = 3
_WORDS = re.compile(r" |->")


def group_rows(store: Store) -> list[dict[str, Any]]:
    """Return one row for each unusual group, and one for each set of groups that behave the same way.

    group: description, or name if there is none; name: torch's number; groups: how many; axis: the mesh axis, if the
    description does not name it; members: global ranks, and the size and stride of one group; no_record: members
    without a record; entered, finished: the last collective that all members with a record entered or finished;
    furthest: the last one that any member entered; behind: members that have not entered that one, and where they wait;
    waiting: which members are in what, and for how long. Texts are bounded.
    """
    records = store.derived(Records)
    waits = _Waits(records)
    views = [_View(records, group, waits) for group in records.groups.values()]
    together = gathered((view.pattern, view) for view in views)
    rows: list[tuple[int, _View, list[_View]]] = []
    for same in together.values():
        if same[0].differs and len(same) <= _MOST_ALONE:
            rows += [(view.priority, view, [view]) for view in same]
        else:
            rows.append((same[0].priority, same[0], same))
    rows.sort(key=lambda row: (row[0], -row[1].size, row[1].kind, min(row[1].group.ranks(), default=0)))
    axes = axis_names(store)
    return [_row(same, axes) for _, _, same in rows]


@dataclass(frozen=True)
class _Wait:
    """A pending operation that a rank waits in."""

    op: str
    seq: int | None
    wait_s: float | None
    created_ns: int | None


class _Waits:
    """The ranks that have waited for more than a moment, and the collectives, sends and receives they wait in."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.of_group: dict[int, dict[int, _Wait]] = {}
        self.kinds: dict[int, set[str]] = {}
        """The kinds of groups that each rank waits in."""
        for group in records.groups.values():
            for rank, entry in group.pending.items():
                if entry.seq > group.finished_by_peers(rank):
                    self._add(group, rank, entry.op, entry.seq, entry.created_ns)
        for (group_id, _, _), ends in records.transfers().items():
            for rank, transfers in ends.items():
                first = transfers[0]
                self._add(records.groups[group_id], rank, first.words, None, first.created_ns)

    def _add(self, group: Group, rank: int, op: str, seq: int | None, created_ns: int | None) -> None:
        wait_s = self._records.wait_s(rank, created_ns)
        if wait_s is None or wait_s >= SETTLED_S:
            mine = self.of_group.setdefault(group.id, {})
            known = mine.get(rank)
            # Calls run ahead of the device: a rank's earliest call holds up the rest.
            if known is None or (created_ns or 0) < (known.created_ns or 0):
                mine[rank] = _Wait(op, seq, wait_s, created_ns)
            self.kinds.setdefault(rank, set()).add(_kind(group))


class _View:
    """One group and the values of its row."""

    def __init__(self, records: Records, group: Group, waits: _Waits) -> None:
        self.group = group
        self.kind = _kind(group)
        ranks = group.ranks()
        self.size = len(ranks)
        self.step = step_of(ranks)
        self.no_record = [rank for rank in ranks if rank not in records.ranks]
        reached = {rank: position.entered for rank, position in group.positions.items()}
        known = [number for number in reached.values() if number is not None]
        self.furthest = max(known, default=None)
        self.entered = min(known, default=None)
        self.finished = _finished(group)
        self.waiting = waits.of_group.get(group.id, {})
        self.behind: dict[str, list[int]] = {}
        """The members known not to have entered what others have, by where they are instead."""
        for rank in ranks:
            record = records.ranks.get(rank)
            if record is None or self.furthest is None or rank in self.waiting:
                continue
            mine = reached.get(rank)
            if mine is None and (record.wrapped or record.only_active):
                nothing = record.only_active and rank not in waits.kinds
                self.behind.setdefault(_NOTHING if nothing else _UNKNOWN, []).append(rank)
                self.entered = None
            elif mine is None or mine < self.furthest:
                self.behind.setdefault(_whereabouts(group, rank, waits), []).append(rank)

    @property
    def ops(self) -> tuple[str, ...]:
        """The operations that members wait in, without the peers of sends and receives."""
        return tuple(sorted({wait.op.split(" ", 1)[0] for wait in self.waiting.values()}))

    @property
    def is_odd(self) -> bool:
        """Whether a member is behind and waits for nothing, or members are in different collectives."""
        collectives = {(wait.op, wait.seq) for wait in self.waiting.values() if wait.seq is not None}
        return _IDLE in self.behind or len(collectives) > 1

    @property
    def differs(self) -> bool:
        """Whether members of the group differ: some are behind, lack a record, or are in another collective."""
        return self.is_odd or bool(self.behind or self.no_record)

    @property
    def priority(self) -> int:
        """Return the sort key of the row: the most informative rows have 0, the least 3.

        0: members are in different collectives, or one is behind and waits for nothing; 1: other differences; 2:
        members only wait; 3: none waits.
        """
        return 0 if self.is_odd else 1 if self.differs else 2 if self.waiting else 3

    @property
    def pattern(self) -> tuple[Any, ...]:
        """A key that is equal for groups that behave the same way."""
        behind = tuple(sorted(self.behind))
        return (self.kind, self.size, self.step, self.ops, behind, bool(self.no_record), self.is_odd)


_IDLE, _UNKNOWN, _NOTHING = "not waiting", "unknown", "with nothing pending"


def _whereabouts(group: Group, rank: int, waits: _Waits) -> str:
    if group.is_overtaken(rank):
        return "recorded earlier"
    kinds = sorted(waits.kinds.get(rank, ()))
    return f"in {', '.join(kinds)}" if kinds else _IDLE


def _kind(group: Group) -> str:
    """The description that groups of one role share; groups without one are distinguished by size and layout."""
    return "" if group.description in _NAMELESS else shown(group.description, _MOST_NAME)


def _finished(group: Group) -> int | None:
    """The last collective that every member with a record finished; None if any of them does not show it."""
    numbers = []
    for position in group.positions.values():
        known = [number for number in (position.last_done, position.completed) if number is not None]
        if not known:
            return None
        numbers.append(max(known))
    return min(numbers, default=None)


def _row(same: Sequence[_View], axes: Mapping[int, str]) -> dict[str, Any]:
    first = same[0]
    of_mesh = {axes.get(view.group.id) for view in same}
    axis = of_mesh.pop() if len(of_mesh) == 1 else None
    return {
        "group": first.kind or (f"group {shown(first.group.name, _MOST_NAME)}" if len(same) == 1 else "groups"),
        "name": _names([view.group.name for view in same]),
        "axis": None if axis is None or first.kind == f"mesh_{axis}" else axis,
        "groups": len(same),
        "members": _members(same),
        "no_record": _spans(absent) if (absent := [rank for view in same for rank in view.no_record]) else None,
        "entered": _range(view.entered for view in same),
        "finished": _range(view.finished for view in same),
        "furthest": _range(view.furthest for view in same),
        "behind": _behind(same) or None,
        "waiting": _waiting(same) or None,
    }


def _members(same: Sequence[_View]) -> str:
    text = _spans(rank for view in same for rank in view.group.ranks())
    if len(same) == 1:
        return text
    step = same[0].step
    return f"{text}; {same[0].size} each" + (f", step {step}" if step is not None and step > 1 else "")


def _spans(ranks: Iterable[int]) -> str:
    return rank_spans(ranks, most=_MOST_SPANS)


def _names(names: Sequence[str]) -> str:
    if all(name.isdecimal() and len(name) < 8 for name in names):
        return _spans(map(int, names))
    return shown(names[0], _MOST_NAME) + (" …" if len(names) > 1 else "")


def _range(numbers: Iterable[int | None]) -> str | None:
    known = [number for number in numbers if number is not None]
    if not known:
        return None
    first, last = min(known), max(known)
    return str(first) if first == last else f"{first}-{last}"


def _behind(same: Sequence[_View]) -> str:
    """The members behind, as `471 not waiting; 3-7 in mesh_tp`, those that wait for nothing first."""
    by_place: dict[str, list[int]] = {}
    for view in same:
        for place, ranks in view.behind.items():
            by_place.setdefault(place, []).extend(ranks)
    ordered = sorted(by_place.items(), key=lambda item: (item[0] != _IDLE, len(item[1]), item[0]))
    return _joined([f"{_spans(ranks)} {place}" for place, ranks in ordered])


def _waiting(same: Sequence[_View]) -> str:
    """The waits, as `3 in barrier 6; 0-2 in all_reduce 6 for 600 s`: transfers with a member that is not waiting come
    first, then the fewest ranks."""
    idle = {str(rank) for view in same for rank in view.behind.get(_IDLE, ())}
    by_op: dict[tuple[str, int | None], dict[int, _Wait]] = {}
    for view in same:
        for rank, wait in view.waiting.items():
            # For one group, show each number; for several, only the operations.
            key = (wait.op, wait.seq) if len(same) == 1 else (wait.op.split(" ", 1)[0], None)
            by_op.setdefault(key, {})[rank] = wait
    ordered = sorted(
        by_op.items(),
        key=lambda item: (idle.isdisjoint(_WORDS.split(item[0][0])), len(item[1]), item[0][0], min(item[1])),
    )
    everybody = {rank for view in same for rank in view.group.ranks()}
    return _joined(
        [
            f"{'all' if waits.keys() == everybody else _spans(waits)} in {shown(op, _MOST_NAME)}{_numbers(waits)}"
            for (op, _), waits in ordered
        ]
    )


def _numbers(waits: Mapping[int, _Wait]) -> str:
    number = _range(wait.seq for wait in waits.values())
    longest = max((wait.wait_s for wait in waits.values() if wait.wait_s is not None), default=None)
    return (f" {number}" if number else "") + (f" for {longest:.0f} s" if longest is not None else "")


def _joined(parts: Sequence[str]) -> str:
    rest = len(parts) - _MOST_PARTS
    return "; ".join(parts[:_MOST_PARTS]) + (f"; … {rest} more" if rest > 0 else "")
