"""Whose flight record it is: a dump holds neither rank nor host nor the time it was taken.

The rank agent and `ddx run` say it in a JSON header (see payloads/rank_agent.py: status); for a lone file
only its name can. What neither says stays None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_RANK_IN_NAME = (
    re.compile(r"(?:^|[^a-z])rank[-_ ]?(\d{1,7})(?!\d)", re.IGNORECASE),  # rank_3, nccl_trace_rank_3, rank-3.812.…
    re.compile(r"_dump_(\d{1,7})(?!\d)"),  # the prefix that `torchfrtrace` documents
    re.compile(r"^(?:r|worker)[-_]?(\d{1,7})(?!\d)", re.IGNORECASE),
    re.compile(r"^(?:.*[-_.])?(\d{1,7})(?:\.(?:pkl|pickle|json|bin|fr))?$"),  # any prefix, as DYNAMIC_FILE_NAME allows
)
_MAX_GROUPS = 10_000
_MAX_RANKS = 1 << 20


@dataclass(frozen=True)
class GroupMembers:
    """A process group as its member knows it: global ranks in group order."""

    name: str
    description: str
    ranks: tuple[int, ...] | None


@dataclass(frozen=True)
class DumpOrigin:
    """What is known about a dump besides its bytes."""

    source: str
    """Path inside the bundle, or of the file."""
    origin: str
    """`agent` | `file` | `endpoint` | `exception` | `peer-died` | `exit`, as in fr_dumps."""
    rank: int | None = None
    host: str | None = None
    world_size: int | None = None
    taken_ns: int | None = None
    only_active: bool | None = None
    groups: tuple[GroupMembers, ...] = field(default=())


def rank_of_name(name: str) -> int | None:
    """The rank in a file name such as `nccl_trace_rank_3` or `rank-3.812.exception.fr.pickle`."""
    base = name.replace("\\", "/").rsplit("/", 1)[-1]
    for pattern in _RANK_IN_NAME:
        if match := pattern.search(base):
            return int(match[1])
    return None


def is_header(value: Any) -> bool:
    """Whether a JSON value is the header of a rank's record (and not a record itself)."""
    return isinstance(value, Mapping) and "rank" in value and isinstance(value.get("groups"), list)


def origin_of_header(header: Mapping[str, Any], source: str, origin: str = "agent") -> DumpOrigin:
    """What a header says of the records behind it. Fields of a wrong type count as not said."""
    groups = header.get("groups")
    members = [_members(group) for group in groups[:_MAX_GROUPS]] if isinstance(groups, list) else []
    host = header.get("host")
    return DumpOrigin(
        source=source,
        origin=origin,
        rank=_natural(header.get("rank")),
        host=host[:255] if isinstance(host, str) and host else None,
        world_size=_natural(header.get("world_size")),
        taken_ns=_natural(header.get("taken_at_ns")),
        groups=tuple(member for member in members if member is not None),
    )


def _members(raw: Any) -> GroupMembers | None:
    if not isinstance(raw, Mapping) or not isinstance(raw.get("name"), str):
        return None
    description, ranks = raw.get("desc"), raw.get("ranks")
    listed: tuple[int, ...] | None = None
    if isinstance(ranks, list) and 0 < len(ranks) <= _MAX_RANKS and all(_natural(r) is not None for r in ranks):
        listed = tuple(ranks)
    return GroupMembers(
        name=raw["name"][:400],
        description=description[:400] if isinstance(description, str) else "",
        ranks=listed,
    )


def _natural(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 63 else None
