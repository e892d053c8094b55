"""Where the program makes a process group: the line of its `new_group`, or of the mesh whose axis it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddx_tools.model import Location
from ddx_tools.parsers.python.python_source import parsed
from ddx_tools.store import Store

_GROUP_MAKERS = ("new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group")
_MESH_MAKERS = ("init_device_mesh", "DeviceMesh", "_flatten")
_MESH = "mesh_"
"""A DeviceMesh describes the groups of its axis tp as `mesh_tp` (torch 2.13 distributed/device_mesh.py)."""
_WHOLE = ("default_pg", "0")


def made_at(store: Store, label: str) -> str:
    """`axis tp of init_device_mesh at train.py:31 main`; "" where no text at hand says it, or several lines may."""
    if label in _WHOLE or not label:
        return ""
    axis = label.removeprefix(_MESH)
    named: list[str] = []
    nameless: list[str] = []
    for row in store.query("SELECT file, any_value(text) AS text FROM sources GROUP BY file ORDER BY file"):
        for call, name in _makers(row["text"] or ""):
            place = f"{name} at {Location(file=row['file'], line=call.lineno).short()}"
            said = {node.value for node in ast.walk(call) if isinstance(node, ast.Constant)}
            if name in _MESH_MAKERS:
                named += [f"axis {axis} of {place}"] if label.startswith(_MESH) and axis in said else []
            elif label in said:
                named.append(place)
            elif not any(keyword.arg == "group_desc" for keyword in call.keywords):
                nameless.append(place)
    found = named or (nameless if label.isdigit() else [])
    return found[0] if len(found) == 1 else ""


def _makers(text: str) -> Iterator[tuple[ast.Call, str]]:
    tree = parsed(text)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in (*_GROUP_MAKERS, *_MESH_MAKERS):
                yield node, name
