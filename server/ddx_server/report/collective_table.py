"""The collectives around the divergence: a column per sequence number, a row per set of ranks with equal records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ddx_tools.evidence.store import Store
from ddx_tools.investigation.show.records import entries
from ddx_tools.model.diagnosis import Location, rank_list
from ddx_tools.model.grouping import gathered

_MOST_GROUPS, _MOST_ROWS = 3, 12
_BEFORE, _AFTER = 5, 3
_DONE, _PENDING, _ODD, _ABSENT = "done", "pending", "odd", "absent"
CELL_WORDS = {
    _DONE: ("✓", "complete"),
    _PENDING: ("●", "called, not complete"),
    _ODD: ("≠", "called something different from the others"),
    _ABSENT: ("–", "no record of it"),
}
"""The symbol and wording of each kind of cell."""


@dataclass(frozen=True)
class NumberColumn:
    """One sequence number of a group, with what was called under it."""

    number: int
    op: str
    place: str
    sizes: str


@dataclass(frozen=True)
class CollectiveTable:
    """What the members of one group recorded around the sequence number where they diverge."""

    group: str
    members: str
    columns: list[NumberColumn]
    rows: list[tuple[str, bool, list[str]]]
    """For each row: its ranks, whether one of them is blamed, and its cells."""
    left_out: int


def collective_tables(store: Store, blamed: Iterable[int]) -> list[CollectiveTable]:
    """Build a table per process group of what its members recorded around its first unfinished collective.

    Groups with blamed ranks come first. If every collective finished, the only table is of the largest group,
    preferably one with a blamed rank; the list is empty without flight records.
    """
    if not store.holds_any(["fr_entries"]):
        return []
    accused = set(blamed)
    groups = store.query(_GROUPS)

    def first(group: dict[str, Any]) -> tuple[bool, bool, int, str]:
        mine = bool(accused & set(group["members"] or ()))
        return group["open"] is None, not mine, -len(group["members"] or ()), group["group_key"]

    ordered = sorted(groups, key=first)
    shown = [group for group in ordered if group["open"] is not None][:_MOST_GROUPS] or ordered[:1]
    return [table for group in shown if (table := _table(store, group, accused))]


_GROUPS = """
SELECT g.group_key, any_value(g.members) AS members, max(e.seq) AS last,
    min(e.seq) FILTER (WHERE NOT e.done) AS open
FROM fr_entries e JOIN fr_memberships m USING (membership) JOIN fr_groups g USING (group_id)
WHERE e.seq IS NOT NULL GROUP BY g.group_key
"""


def _table(store: Store, group: dict[str, Any], blamed: set[int]) -> CollectiveTable | None:
    middle = group["last"] if group["open"] is None else group["open"]
    condition = "group_key = ? AND seq BETWEEN ? AND ? AND NOT coalesce(is_p2p, false)"
    rows = entries(store, condition, [group["group_key"], middle - _BEFORE, middle + _AFTER])
    if not rows:
        return None
    by_number = gathered((row["seq"], row) for row in rows)
    usual = {number: _usual(same, blamed) for number, same in by_number.items()}
    by_rank = gathered((row["rank"], row) for row in rows if row["rank"] is not None)
    numbers = sorted(by_number)
    members = sorted({*(group["members"] or ()), *by_rank})
    alike = gathered((tuple(_cells(by_rank.get(rank, ()), numbers, usual)), rank) for rank in members)
    ordered = sorted(alike.items(), key=lambda item: (not blamed & set(item[1]), len(item[1]), item[1]))
    made = [(rank_list(ranks), bool(blamed & set(ranks)), list(cells)) for cells, ranks in ordered[:_MOST_ROWS]]
    columns = [_column(number, by_number[number], usual[number]) for number in numbers]
    return CollectiveTable(rows[0]["label"], rank_list(members), columns, made, len(ordered) - len(made))


def _usual(rows: Sequence[dict[str, Any]], blamed: set[int]) -> tuple[Any, ...]:
    """The call made by most of the ranks that are not blamed; if all are blamed, by most of all ranks."""
    others = [row for row in rows if row["rank"] not in blamed] or rows
    return Counter(map(_call, others)).most_common(1)[0][0]


def _call(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["op"], row["input_sizes"], row["input_dtypes"]


def _cells(mine: Sequence[dict[str, Any]], numbers: Sequence[int], usual: dict[int, tuple[Any, ...]]) -> list[str]:
    known = {row["seq"]: row for row in mine}
    cells = []
    for number in numbers:
        row = known.get(number)
        odd = row is not None and _call(row) != usual[number]
        cells.append(_ABSENT if row is None else _ODD if odd else _DONE if row["done"] else _PENDING)
    return cells


def _column(number: int, rows: Sequence[dict[str, Any]], usual: tuple[Any, ...]) -> NumberColumn:
    row = next(row for row in rows if _call(row) == usual)
    at = row["user_file"]
    place = Location(file=at, line=row["user_line"]).short() if at else ""
    return NumberColumn(
        number, str(row["op"]), place, f"{row['input_sizes'] or ''} {row['input_dtypes'] or ''}".strip()
    )
