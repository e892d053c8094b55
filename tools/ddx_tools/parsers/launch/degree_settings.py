"""Reads a job's mesh settings from a file or a command, one setting per row."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ddx_tools.model.errors import UsageError
from ddx_tools.model.mesh_setting import MeshSetting

_LARGEST = 1_000_000_000


def whole_number(value: Any) -> int | None:
    """Return a number from a configuration file; None for anything else and for implausible values."""
    if isinstance(value, str):
        value = int(value) if re.fullmatch(r"-?[0-9]{1,10}", value.strip()) else None
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _LARGEST:
        return None
    return value


def settings_of(section: Any, names: Mapping[str, str], text: str) -> list[MeshSetting]:
    """Return the settings in a mapping; `names` maps keys to setting names. The line is that of the key's first use."""
    if not isinstance(section, dict):
        return []
    found = []
    for key, name in names.items():
        value = whole_number(section.get(key))
        if value is not None:
            found.append(MeshSetting(name, value, f"{key} = {value}", line_of(text, key)))
    return found


def line_of(text: str, key: str) -> int | None:
    """Return the number of the first line that sets this key."""
    found = re.search(rf"""^[ \t{{,"']*{re.escape(key)}["']?\s*[:=]""", text, re.M)
    return None if found is None else text.count("\n", 0, found.end()) + 1


def nested(tree: Any, path: Sequence[str]) -> Any:
    """Return the value at a path of keys; None if there is none."""
    for key in path:
        if not isinstance(tree, dict):
            return None
        tree = tree.get(key)
    return tree


# --- dimensions as typed on the command line: `dp_replicate=2,dp_shard=-1,tp=8`

_PAIR = re.compile(r"(?P<name>[A-Za-z_]\w{0,40})\s*[=:]\s*(?P<size>-?[0-9]{1,9})", re.A)
_MOST_DIMS = 16
HELP = "Write them outermost first, with -1 for the remainder: --dims pp=2,dp_shard=-1,tp=8"


def parse_dims(text: str) -> list[MeshSetting]:
    """Parse mesh dimensions such as `dp=4,tp=2` (also with `:`, or blanks between them), in order.

    One size may be -1, for the remainder. Raises `UsageError` for invalid or repeated dimensions.
    """
    found: dict[str, MeshSetting] = {}
    for part in filter(None, re.split(r"[,\s]+", re.sub(r"\s*([=:])\s*", r"\1", text.strip()))):
        pair = _PAIR.fullmatch(part)
        if pair is None:
            raise UsageError(f"{part[:60]!r} is not NAME=SIZE", HELP)
        name, size = pair["name"], int(pair["size"])
        if name in found:
            raise UsageError(f"the dimension {name} is named twice", HELP)
        if size < 1 and size != -1:
            raise UsageError(f"{name} = {size}: a size must be positive, or -1 for the remainder", HELP)
        found[name] = MeshSetting(name, size, f"{name}={size}")
    if not found or len(found) > _MOST_DIMS:
        raise UsageError(f"--dims names {len(found) or 'no'} dimensions", HELP)
    open_ = [name for name, one in found.items() if one.value == -1]
    if len(open_) > 1:
        raise UsageError(f"{' and '.join(open_)} are both -1: only one can be the remainder", HELP)
    return list(found.values())
