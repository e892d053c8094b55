"""What a file or a command says of a job's mesh, one setting a row, and how such numbers are read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ddx_tools.model.errors import UsageError
from ddx_tools.model.mesh_setting import MeshSetting

_LARGEST = 1_000_000_000


def whole_number(value: Any) -> int | None:
    """A number as configuration files have it; None for anything else, and for what no job can mean."""
    if isinstance(value, str):
        value = int(value) if re.fullmatch(r"-?[0-9]{1,10}", value.strip()) else None
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _LARGEST:
        return None
    return value


def settings_of(section: Any, names: Mapping[str, str], text: str) -> list[MeshSetting]:
    """The settings of a mapping: `names` says which key stands for what. Lines are where the key stands first."""
    if not isinstance(section, dict):
        return []
    found = []
    for key, name in names.items():
        value = whole_number(section.get(key))
        if value is not None:
            found.append(MeshSetting(name, value, f"{key} = {value}", line_of(text, key)))
    return found


def line_of(text: str, key: str) -> int | None:
    """The first line that sets this key."""
    found = re.search(rf"""^[ \t{{,"']*{re.escape(key)}["']?\s*[:=]""", text, re.M)
    return None if found is None else text.count("\n", 0, found.end()) + 1


def nested(tree: Any, path: Sequence[str]) -> Any:
    """What stands at a path of keys; None if nothing does."""
    for key in path:
        if not isinstance(tree, dict):
            return None
        tree = tree.get(key)
    return tree


# --- dimensions as one types them: `dp_replicate=2,dp_shard=-1,tp=8`

_PAIR = re.compile(r"(?P<name>[A-Za-z_]\w{0,40})\s*[=:]\s*(?P<size>-?[0-9]{1,9})", re.A)
_MOST_DIMS = 16
HELP = "Write them outermost first, with -1 for what is left: --dims pp=2,dp_shard=-1,tp=8"


def parse_dims(text: str) -> list[MeshSetting]:
    """Dimensions in the order given. Raises `UsageError` for what is none, and for one that is named twice."""
    found: dict[str, MeshSetting] = {}
    for part in filter(None, re.split(r"[,\s]+", re.sub(r"\s*([=:])\s*", r"\1", text.strip()))):
        pair = _PAIR.fullmatch(part)
        if pair is None:
            raise UsageError(f"{part[:60]!r} is no dimension with its size", HELP)
        name, size = pair["name"], int(pair["size"])
        if name in found:
            raise UsageError(f"the dimension {name} is named twice", HELP)
        if size < 1 and size != -1:
            raise UsageError(f"{name} = {size}: a dimension has a positive size, or -1 for what is left", HELP)
        found[name] = MeshSetting(name, size, f"{name}={size}")
    if not found or len(found) > _MOST_DIMS:
        raise UsageError(f"--dims names {len(found) or 'no'} dimensions", HELP)
    open_ = [name for name, one in found.items() if one.value == -1]
    if len(open_) > 1:
        raise UsageError(f"{' and '.join(open_)} are both -1: only one can be what is left", HELP)
    return list(found.values())
