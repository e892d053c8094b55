"""Everything there is to say of the meshes of a store."""

from __future__ import annotations

from collections.abc import Iterator

from ddx_tools.mesh.answers import described, recorded_axes, what_is, where_is, whose_group
from ddx_tools.mesh.checks import check
from ddx_tools.mesh.meshes import Mesh, Meshes
from ddx_tools.model import Finding
from ddx_tools.store import Store


def mesh_findings(store: Store) -> list[Finding]:
    """Pure: the rows of all hosts in, findings out."""
    meshes = store.derived(Meshes)
    return [finding for mesh in meshes.all for finding in _of(mesh, meshes)]


def _of(mesh: Mesh, meshes: Meshes) -> Iterator[Finding]:
    layout = mesh.layout
    yield from described(mesh)
    yield from check(mesh)
    if layout is None:
        return
    for kind, value in meshes.questions:
        if kind == "rank":
            yield where_is(mesh, layout, int(value))
        elif kind == "members":
            yield whose_group(layout, value)
        elif kind == "group":
            yield what_is(layout, value)
    yield from recorded_axes(layout, meshes.groups)
