"""The origins of a bundle's raw files: the host query that shows the same."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ddx_tools.sources.bundle import JournalEntry

_WORDS = {"read": "", "stack": "py-spy dump --pid ", "core": "pystack core ", "processes": "the process table"}
_AGENT_KEY = re.compile(r'"pid": (?P<pid>\d{1,10}), "rank": (?P<rank>\d{1,10}),')
"""Matches a request to an agent, which is JSON with sorted keys."""
_SERVER = re.compile(r'\["(https?://[^"]{1,600})"')


def origins(journal: Sequence[JournalEntry]) -> dict[str, str]:
    """Map each raw file of a bundle to what produced it on the host.

    This is a command such as `py-spy dump --pid 812`, a path, a URL, or the agent that was asked.
    """
    return {entry.path: _origin(entry) for entry in journal if entry.path}


def _origin(entry: JournalEntry) -> str:
    if entry.op == "agent" and (asked := _AGENT_KEY.search(entry.key)):
        return f"the agent in rank {asked['rank']}, pid {asked['pid']}"
    if entry.op == "metrics" and (server := _SERVER.search(entry.key)):
        return f"{server[1]}/api/v1/query_range"
    return _WORDS.get(entry.op, f"{entry.op} ") + entry.key


def origin_of(source: str, known: Mapping[str, str]) -> str | None:
    """What the source of a piece of evidence was on the host; None if unknown.

    A source may continue after the bundle's file name: a member of an archive, a record of a dump.
    """
    if source in known:
        return known[source]
    path = max((path for path in known if source.startswith(path)), key=len, default=None)
    return None if path is None else known[path] + source[len(path) :]
