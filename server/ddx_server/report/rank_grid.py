"""The grid of ranks: one row per host or mesh position, one cell per rank or, for thousands of ranks, per host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ddx_server.report.rank_states import STATE_WORDS, RankPicture, RankState
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import rank_list
from ddx_tools.model.grouping import gathered

_MOST_CELLS = 512
_RANKS_OF_A_HOST = 8
_NO_HOST = ""
_MOST_AXES, _MOST_GROUPS, _MOST_ODD = 8, 4, 64


@dataclass(frozen=True)
class GridCell:
    """One rank, or ranks that share a cell."""

    label: str
    state: RankState
    says: str
    """The cell in words, for screen readers."""
    kind: int | None
    """The number of the panel that it opens."""
    blamed: bool
    rank: int
    """The first of its ranks."""


@dataclass(frozen=True)
class GridRow:
    """Cells under one name."""

    name: str
    cells: list[GridCell]


@dataclass(frozen=True)
class RankGrid:
    """All ranks of a job as a grid, with its legend and groups."""

    rows: list[GridRow]
    legend: list[tuple[RankState, str, str, int]]
    """For each state that occurs: the state, its symbol, its wording, its number of ranks."""
    ranks: int
    folded: bool
    """Whether a cell stands for several ranks."""
    odd: list[GridCell]
    """If cells are folded: the ranks that stand out, one cell each."""
    axes: dict[str, list[tuple[str, list[int]]]]
    """The groups of each mesh axis, with name and ranks. Empty if cells are folded."""
    seats: list[str]
    """Sentences that name the group of each axis that the blamed ranks are in."""


def rank_grid(store: Store, picture: RankPicture) -> RankGrid | None:
    """Build the report's grid of all ranks, one row per host, each cell with a rank's state.

    If there are too many ranks, a cell represents several. The result is None if no rank is known.
    """
    if not picture.states:
        return None
    kind_of = picture.kind_of()
    folded = len(picture.states) > _MOST_CELLS
    by_host = gathered((picture.hosts.get(rank, _NO_HOST), rank) for rank in picture.states)
    # Host names may be known for only some ranks: rows by host, those without a name last.
    hosts = sorted(by_host.items(), key=lambda item: (item[0] == _NO_HOST, min(item[1])))
    if folded:
        cells = [_folded_cell(picture, kind_of, name, ranks) for name, ranks in _blocks(hosts)]
        rows = [GridRow("", cells)]
    else:
        rows = [GridRow(name, [_cell(picture, kind_of, rank) for rank in ranks]) for name, ranks in hosts]
    counted = Counter(picture.states.values())
    legend = [(state, *STATE_WORDS[state], counted[state]) for state in RankState if counted[state]]
    rare = {state for state, count in counted.items() if count <= _MOST_ODD}
    odd = [rank for rank, state in picture.states.items() if rank in picture.blamed or state in rare] if folded else []
    groups = _axes(store)
    return RankGrid(
        rows,
        legend,
        len(picture.states),
        folded,
        [_cell(picture, kind_of, rank) for rank in odd[:_MOST_ODD]],
        {} if folded else {axis: [(name, ranks) for name, ranks in made] for axis, made in groups.items()},
        list(_seats(groups, picture.blamed)),
    )


def _cell(picture: RankPicture, kind_of: dict[int, int], rank: int) -> GridCell:
    state = picture.states[rank]
    blamed = rank in picture.blamed
    host = f", host {picture.hosts[rank]}" if rank in picture.hosts else ""
    says = f"rank {rank}{host}: {STATE_WORDS[state][1]}{', suspect' if blamed else ''}"
    return GridCell(str(rank), state, says, kind_of.get(rank), blamed, rank)


def _blocks(hosts: Iterable[tuple[str, Sequence[int]]]) -> Iterator[tuple[str, Sequence[int]]]:
    """Rows of ranks by host; ranks on unknown hosts are in rows of eight, since most hosts have eight."""
    for name, ranks in hosts:
        if name != _NO_HOST:
            yield name, ranks
            continue
        by_block = gathered((rank // _RANKS_OF_A_HOST, rank) for rank in ranks)
        yield from (("", block) for _, block in sorted(by_block.items()))


def _folded_cell(picture: RankPicture, kind_of: dict[int, int], name: str, ranks: Sequence[int]) -> GridCell:
    order = list(RankState)
    worst = min(ranks, key=lambda rank: (rank not in picture.blamed, order.index(picture.states[rank])))
    counted = Counter(picture.states[rank] for rank in ranks)
    told = ", ".join(f"{count} {STATE_WORDS[state][1]}" for state, count in counted.items())
    blamed = [rank for rank in ranks if rank in picture.blamed]
    suspect = f", suspect: {rank_list(blamed)}" if blamed else ""
    where = f"host {name}, " if name else ""
    says = f"{where}{rank_list(list(ranks))}: {told}{suspect}"
    return GridCell(str(min(ranks)), picture.states[worst], says, kind_of.get(worst), bool(blamed), worst)


_GROUPS = """
SELECT DISTINCT members,
    CASE WHEN coalesce(description, '') IN ('', 'undefined') THEN name ELSE description END AS label
FROM fr_groups WHERE members IS NOT NULL
"""
_MESH = """
SELECT dimension, coordinate, list(rank ORDER BY rank) AS ranks FROM mesh
WHERE plan = (SELECT min(plan) FROM mesh) GROUP BY dimension, coordinate ORDER BY dimension, coordinate
"""


def _axes(store: Store) -> dict[str, list[tuple[str, list[int]]]]:
    """Recorded groups by description (a mesh names its axes that way), or else the positions in a known mesh."""
    made: dict[str, list[list[int]]] = {}
    for row in store.query(_GROUPS):
        made.setdefault(row["label"], []).append(sorted(row["members"]))
    axes = {
        label: [(rank_list(ranks), ranks) for ranks in sorted(groups)]
        for label, groups in sorted(made.items())
        if len(groups) > 1 and len({rank for ranks in groups for rank in ranks}) == sum(map(len, groups))
    }
    if not axes and store.holds_any(["mesh"]):
        for row in store.query(_MESH):
            axes.setdefault(row["dimension"], []).append((f"{row['dimension']} {row['coordinate']}", row["ranks"]))
    return dict(list(axes.items())[:_MOST_AXES])


def _seats(axes: dict[str, list[tuple[str, list[int]]]], blamed: Iterable[int]) -> Iterator[str]:
    accused = set(blamed)
    for axis, groups in axes.items():
        holding = [name for name, ranks in groups if accused & set(ranks)]
        if holding:
            more = f" and {len(holding) - _MOST_GROUPS} more" if len(holding) > _MOST_GROUPS else ""
            yield f"suspect in {axis}: {'; '.join(holding[:_MOST_GROUPS])}{more} (of {len(groups)} groups)"
