"""The rows of a capture: what is set, what is asked, the groups of flight records, and where every rank stands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice, product
from typing import Any

from ddx_tools.mesh.capture import FILE, PROCESSES, QUESTION
from ddx_tools.mesh.groups import RecordedGroup, group_of_row
from ddx_tools.mesh.meshes import Mesh, meshes_of
from ddx_tools.mesh.plan import Placed, Plan, plan_rows, plans_of_rows
from ddx_tools.mesh.read import plans_in, plans_of_words
from ddx_tools.parsers.launch.degree_settings import MeshSetting
from ddx_tools.parsers.launchers.launchers import find_jobs
from ddx_tools.probe import Batches, Raw, RawItem
from ddx_tools.schema import arrow_array, arrow_types, columns

_MOST_RANKS = 1 << 17
"""Of a larger mesh the rows stay out; its arithmetic does not need them."""


def mesh_rows(raw: Raw) -> Batches:
    """Rows of `mesh_settings`, `mesh_questions`, `fr_groups` and `mesh`."""
    plans: list[Plan] = []
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
        from ddx_tools.flight_records.material import record_rows

        yield from ((table, batch) for table, batch in record_rows(records) if table == "fr_groups")
        raw.problems += records.problems


def _plans_of_job(item: RawItem) -> Iterator[Plan]:
    for job in find_jobs(json.loads(item.data)):
        if job.id != item.facts["job"]:
            continue
        members = [*(member for member in job.members if member.role == "launcher"), *job.live[:1]]
        commands = [member.process.row.get("cmdline") or [] for member in members if member.process]
        for plan in plans_of_words([[str(word) for word in words] for words in commands], item.source):
            if job.world_size:  # what the ranks were told counts for more than what the launcher was
                told = MeshSetting("world_size", job.world_size, f"WORLD_SIZE={job.world_size}")
                plan.placed.append(Placed(told, item.source))
            yield plan


def _coordinates(mesh: Mesh) -> Any:
    """The rows of `mesh` of one mesh, by columns."""
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
