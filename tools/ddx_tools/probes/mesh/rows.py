"""Turns a capture into rows: settings, questions, the groups of flight records, and the coordinates of every rank."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice, product
from typing import Any, cast

from ddx_tools.analysis.mesh.groups import Mesh, Meshes, RecordedGroup, group_of_row, meshes_of
from ddx_tools.analysis.mesh.layout import Layout
from ddx_tools.analysis.mesh.plan import MeshPlan, plan_rows, plans_of_rows
from ddx_tools.evidence.schema import arrow_array, arrow_types, columns
from ddx_tools.evidence.store import Store
from ddx_tools.model.mesh_setting import MeshSetting
from ddx_tools.parsers.launch.launchers import find_jobs
from ddx_tools.probes.mesh.capture import FILE, PROCESSES, QUESTION
from ddx_tools.probes.mesh.read import plans_in, plans_of_words
from ddx_tools.sources.raw import Batches, Raw, RawItem

_MOST_RANKS = 1 << 17
"""A larger mesh gets no rows; its arithmetic does not need them."""


def mesh_rows(raw: Raw) -> Batches:
    """Yield the rows of `mesh_settings`, `mesh_questions`, `fr_groups` and `mesh`."""
    plans: list[MeshPlan] = []
    questions: list[dict[str, Any]] = []
    for item in raw.items:
        if item.kind == FILE:
            plans += plans_in(item.facts["path"], item.data, item.source)
        elif item.kind == PROCESSES:
            plans += _plans_of_job(item)
        elif item.kind == QUESTION:
            typed = json.loads(item.data)
            plans += plans_of_rows(typed["mesh_settings"])
            questions += typed["mesh_questions"]
    yield "mesh_settings", list(plan_rows(plans))
    yield "mesh_questions", questions
    groups: list[RecordedGroup] = []
    for table, batch in _record_groups(raw):
        groups += [group for row in batch.to_pylist() if (group := group_of_row(row))]
        yield table, batch
    framework = next((one["value"] for one in questions if one["kind"] == "framework"), None)
    for mesh in meshes_of(plans, groups, framework):
        if mesh.layout and mesh.layout.world_size <= _MOST_RANKS:
            yield "mesh", _coordinates(mesh)


def _record_groups(raw: Raw) -> Batches:
    records = Raw(raw.host, [item for item in raw.items if item.kind not in (FILE, PROCESSES, QUESTION)])
    if records.items:
        from ddx_tools.probes.registry import probe

        rows = cast(Batches, probe("flight_recorder").parse(records))
        yield from ((table, batch) for table, batch in rows if table == "fr_groups")
        raw.problems += records.problems


def _plans_of_job(item: RawItem) -> Iterator[MeshPlan]:
    for job in find_jobs(json.loads(item.data)):
        if job.id != item.facts["job"]:
            continue
        members = [*(member for member in job.members if member.role == "launcher"), *job.live[:1]]
        commands = [member.process.row.get("cmdline") or [] for member in members if member.process]
        for plan in plans_of_words([[str(word) for word in words] for words in commands], item.source):
            if job.world_size:  # the ranks' own value outweighs the launcher's
                text = f"WORLD_SIZE={job.world_size}"
                plan.placed.append(MeshSetting("world_size", job.world_size, text, source=item.source))
            yield plan


def _coordinates(mesh: Mesh) -> Any:
    """The `mesh` rows of one mesh, as columns."""
    import pyarrow as pa

    layout = mesh.layout
    assert layout is not None
    names, world = layout.grid.names, layout.world_size
    places = list(islice(product(*(range(size) for size in layout.grid.sizes)), world))
    values: dict[str, list[Any]] = {
        "plan": [mesh.plan.id] * (world * len(names)),
        "rank": [rank for rank in range(world) for _ in names],
        "dimension": list(names) * world,
        "coordinate": [at for place in places for at in place],
        "host_index": [mesh.host_index(rank) for rank in range(world) for _ in names],
    }
    types = arrow_types()
    return pa.table({name: arrow_array(values[name], types[kind]) for name, (kind, _) in columns("mesh").items()})


# --- a mesh as rows: one for each line of ranks along the innermost dimensions

MOST_ACROSS = 16
"""The maximum number of ranks on one line."""
_FEW_LINES = 32
_MOST_LINES = 1 << 15


def line_rows(store: Store) -> list[dict[str, Any]]:
    """Return the table of meshes to show: one row per line of ranks along the innermost dimensions.

    If the user asked about a rank, its line comes first, then lines with other members of its groups. mesh: which mesh,
    if there are several; at: the coordinates that the line's ranks share; hosts: host numbers; along: the dimensions in
    which the ranks differ; ranks: the first ranks of the line; more: how many of its ranks are not listed.
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
    """The innermost dimension; in a large world where it is short, also the next ones, as long as they fit on one
    line."""
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
