"""Dimensions as one types them: `dp_replicate=2,dp_shard=-1,tp=8`."""

from __future__ import annotations

import re

from ddx_tools.errors import UsageError
from ddx_tools.parsers.launch.degree_settings import MeshSetting

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
