"""A mesh as rows: one for each line of ranks along the innermost dimensions."""

from __future__ import annotations

from itertools import islice
from typing import Any

from ddx_tools.mesh.layout import Layout
from ddx_tools.mesh.meshes import Mesh, Meshes
from ddx_tools.store import Store

MOST_ACROSS = 16
"""So many ranks stand side by side."""
_FEW_LINES = 32
_MOST_LINES = 1 << 15


def line_rows(store: Store) -> list[dict[str, Any]]:
    """Lines of ranks; those first that hold members of the groups of a rank that was asked about.

    mesh: which one, if there are several; at: coordinates that the line's ranks share; hosts: by number; along: the
    dimensions in which they differ; ranks: the ranks, of a line that is too long the first ones, and in `more` how
    many there are beyond.
    """
    meshes = store.derived(Meshes)
    asked = meshes.asked("rank")
    rank = None if asked is None else int(asked)
    return [row for mesh in meshes.all if mesh.layout for row in _rows(mesh, mesh.layout, rank)]


def _rows(mesh: Mesh, layout: Layout, rank: int | None) -> list[dict[str, Any]]:
    grid = layout.grid
    along = _along(layout)
    shared = [name for name in grid.names if grid.size(name) > 1 and name not in along]
    akin: set[int] = set()
    if rank is not None and rank < layout.world_size:
        axes = (axis for axis in layout.axes if axis.size < layout.world_size)
        akin = {rank}.union(*(axis.members(rank) for axis in axes))
    lines = list(islice(grid.groups(along), _MOST_LINES))
    lines.sort(key=lambda line: (rank not in line, akin.isdisjoint(line)))
    return [
        {
            "mesh": mesh.plan.label or None,
            "at": ", ".join(f"{name} {grid.coordinates(line[0])[name]}" for name in shared) or None,
            "hosts": _hosts(mesh, line),
            "along": " × ".join(along),
            "ranks": line[:MOST_ACROSS],
            "more": len(line) - MOST_ACROSS if len(line) > MOST_ACROSS else None,
        }
        for line in lines
    ]


def _along(layout: Layout) -> list[str]:
    """The innermost dimension; of a large world with a short one also the next, as far as they fit side by side."""
    chosen: list[str] = []
    across = 1
    for name in reversed(layout.grid.names):
        size = layout.grid.size(name)
        if chosen and (layout.world_size // across <= _FEW_LINES or across * size > MOST_ACROSS):
            break
        if size > 1:
            chosen.insert(0, name)
            across *= size
    return chosen


def _hosts(mesh: Mesh, line: list[int]) -> str | None:
    hosts = sorted({host for rank in line if (host := mesh.host_index(rank)) is not None})
    if not hosts:
        return None
    return str(hosts[0]) if len(hosts) == 1 else f"{hosts[0]}-{hosts[-1]}"
