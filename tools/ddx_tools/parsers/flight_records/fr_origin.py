"""Determines which rank a flight record belongs to: a dump has neither rank nor host nor the time it was taken.

The rank agent and `ddx run` write these to a JSON header (see payloads/rank_agent.py: status); for a lone file, only
its name can give them. Unknown values are None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ddx_tools.model.errors import UsageError
from ddx_tools.model.files.rank_names import NameFacts
from ddx_tools.parsers.plain_json import LARGEST, whole

_MAX_GROUPS = 10_000
_MAX_RANKS = 1 << 20


@dataclass(frozen=True)
class GroupMembers:
    """A process group as seen by a member: global ranks in group order."""

    name: str
    description: str
    ranks: tuple[int, ...] | None


@dataclass(frozen=True)
class DumpOrigin:
    """What is known about a dump, apart from its bytes."""

    source: str
    """The path in the bundle, or of the file."""
    origin: str
    """`agent` | `file` | `endpoint` | `exception` | `peer-died` | `exit`, as in fr_dumps."""
    rank: int | None = None
    host: str | None = None
    world_size: int | None = None
    taken_ns: int | None = None
    written_ns: int | None = None
    """When the file was last written: the dump was taken then or, if the file is a copy, earlier."""
    only_active: bool | None = None
    attempt: str | None = None
    """The part that files of one attempt share: their directory, and the name around the rank."""
    groups: tuple[GroupMembers, ...] = field(default=())


def is_header(value: Any) -> bool:
    """Return whether a JSON value is the header of a rank's record, not a record itself."""
    return isinstance(value, Mapping) and "rank" in value and isinstance(value.get("groups"), list)


def origin_of_header(header: Mapping[str, Any], source: str, origin: str = "agent") -> DumpOrigin:
    """Return the origin that a header gives for its records. Fields of a wrong type count as missing."""
    groups = header.get("groups")
    members = [_members(group) for group in groups[:_MAX_GROUPS]] if isinstance(groups, list) else []
    host = header.get("host")
    return DumpOrigin(
        source=source,
        origin=origin,
        rank=whole(header.get("rank"), LARGEST),
        host=host[:255] if isinstance(host, str) and host else None,
        world_size=whole(header.get("world_size"), LARGEST),
        taken_ns=whole(header.get("taken_at_ns"), LARGEST),
        groups=tuple(member for member in members if member is not None),
    )


def _members(raw: Any) -> GroupMembers | None:
    if not isinstance(raw, Mapping) or not isinstance(raw.get("name"), str):
        return None
    description, ranks = raw.get("desc"), raw.get("ranks")
    listed: tuple[int, ...] | None = None
    if isinstance(ranks, list) and 0 < len(ranks) <= _MAX_RANKS and set(map(type, ranks)) == {int} and min(ranks) >= 0:
        listed = tuple(ranks)
    return GroupMembers(
        name=raw["name"][:400], description=description[:400] if isinstance(description, str) else "", ranks=listed
    )


# --- user-given patterns that find the rank, and perhaps the host, in dump file names
# Names are untrusted, and an `re` pattern can take for ever on a hostile name. So Arrow's RE2 does the matching, in
# time linear in the name; `re` only finds a pattern's groups.

_MOST_PATTERN = 500
_MOST_NAME = 4096
_OPENINGS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?!\?)")
"""Unnamed groups, and what only looks like one: escaped, or in a character class."""
_EXAMPLE = r"For example: --rank-pattern 'trace_r(\d+)', or '(?P<host>[^/]+)/r(?P<rank>\d+)$' over the whole path."


@dataclass(frozen=True)
class RankPattern:
    """A checked pattern: one group for the rank, or groups named `rank` and `host`."""

    expression: str
    """The pattern for RE2, with every group named."""
    whole_path: bool
    """Whether it contains a folder and so is matched against the path; otherwise against the file name."""

    @classmethod
    def parse(cls, text: str) -> RankPattern:
        """Check a pattern and return it. Raises UsageError if it is not valid."""
        if len(text) > _MOST_PATTERN:
            raise UsageError(f"--rank-pattern has {len(text)} characters, more than {_MOST_PATTERN}", _EXAMPLE)
        expression, groups = _with_named_groups(text)
        if "rank" not in groups or set(groups) - {"rank", "host"}:
            named = ", ".join(sorted(groups)) or "no group"
            raise UsageError(f"--rank-pattern {text!r} has {named}: it needs a group around the rank", _EXAMPLE)
        pattern = cls(expression, "/" in text)
        pattern.facts("nccl_trace_rank_0")
        return pattern

    def facts(self, path: str) -> NameFacts:
        """Return what the pattern finds in a path; files in one folder count as one attempt. Raises UsageError."""
        import pyarrow as pa
        import pyarrow.compute as pc

        folder, _, base = path.replace("\\", "/").rpartition("/")
        seen = f"{folder}/{base}" if self.whole_path else base
        try:
            (found,) = pc.extract_regex(pa.array([_valid(seen[-_MOST_NAME:])]), self.expression).to_pylist()
        except pa.ArrowInvalid as error:
            raise UsageError(f"--rank-pattern cannot be used: {str(error)[:200]}", _EXAMPLE) from None
        rank = (found or {}).get("rank", "")
        host = (found or {}).get("host") or None
        return NameFacts(int(rank) if rank.isdecimal() and len(rank) <= 7 else None, host, f"{folder}/*")


def _with_named_groups(text: str) -> tuple[str, list[str]]:
    """The pattern, with a name for its only group if that has none, and the names of its groups."""
    try:
        compiled = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"--rank-pattern {text!r} is not a regular expression: {str(error)[:200]}", _EXAMPLE) from None
    if compiled.groups == 1 and not compiled.groupindex:
        return _OPENINGS.sub(lambda found: "(?P<rank>" if found[0] == "(" else found[0], text), ["rank"]
    if compiled.groups > len(compiled.groupindex):
        raise UsageError(
            f"--rank-pattern {text!r} has {compiled.groups} groups: which one holds the rank?",
            f"Call it (?P<rank>…), and write (?:…) for the others. {_EXAMPLE}",
        )
    return text, list(compiled.groupindex)


def _valid(name: str) -> str:
    """A file name as valid UTF-8: names may contain bytes that are not text."""
    return name.encode("utf-8", "replace").decode()
