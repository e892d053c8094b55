"""Where the names of somebody's dumps hold the rank, and perhaps the host: a pattern that a person gives.

Names come from anywhere, and a pattern of `re` can take for ever on a name made for it. So RE2 (of Arrow) matches,
in time linear in the name; `re` only tells which groups a pattern has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ddx_tools.errors import UsageError
from ddx_tools.parsers.flight_records.fr_origin import NameFacts

_MOST_PATTERN = 500
_MOST_NAME = 4096
_OPENINGS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?!\?)")
"""The groups without a name, and what only looks like one: escaped, or in a set of characters."""
_EXAMPLE = r"For example: --rank-pattern 'trace_r(\d+)', or '(?P<host>[^/]+)/r(?P<rank>\d+)$' over the whole path."


@dataclass(frozen=True)
class RankPattern:
    """A pattern that was looked through: one group for the rank, or groups called `rank` and `host`."""

    expression: str
    """For RE2, every group named."""
    whole_path: bool
    """It names a folder, so it sees the path; else it sees the name of the file."""

    @classmethod
    def parse(cls, text: str) -> RankPattern:
        """Raises UsageError if the text is no such pattern."""
        if len(text) > _MOST_PATTERN:
            raise UsageError(f"--rank-pattern has {len(text)} characters, more than {_MOST_PATTERN}", _EXAMPLE)
        expression, groups = _with_named_groups(text)
        if "rank" not in groups or set(groups) - {"rank", "host"}:
            named = ", ".join(sorted(groups)) or "no group"
            raise UsageError(f"--rank-pattern {text!r} has {named}: it needs a group that holds the rank", _EXAMPLE)
        pattern = cls(expression, "/" in text)
        pattern.facts("nccl_trace_rank_0")
        return pattern

    def facts(self, path: str) -> NameFacts:
        """What the pattern finds in a path; files of one folder count as one attempt. Raises UsageError."""
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
    """The pattern with a name for its only group if that has none, and the names of its groups."""
    try:
        compiled = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"--rank-pattern {text!r} is no regular expression: {str(error)[:200]}", _EXAMPLE) from None
    if compiled.groups == 1 and not compiled.groupindex:
        return _OPENINGS.sub(lambda found: "(?P<rank>" if found[0] == "(" else found[0], text), ["rank"]
    if compiled.groups > len(compiled.groupindex):
        raise UsageError(
            f"--rank-pattern {text!r} has {compiled.groups} groups: which one holds the rank?",
            f"Call it (?P<rank>…), and write (?:…) for the others. {_EXAMPLE}",
        )
    return text, list(compiled.groupindex)


def _valid(name: str) -> str:
    """File names may hold bytes that are no text."""
    return name.encode("utf-8", "replace").decode()
