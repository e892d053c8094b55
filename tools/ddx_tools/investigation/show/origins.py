"""Where the raw files of a bundle came from: what a reader would ask of the host to see the same."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ddx_tools.sources.bundle import JournalEntry

_WORDS = {"read": "", "stack": "py-spy dump --pid ", "processes": "the process table"}
_AGENT_KEY = re.compile(r'"pid": (?P<pid>\d{1,10}), "rank": (?P<rank>\d{1,10}),')
"""In a question to an agent, which is JSON with sorted keys."""


def origins(journal: Sequence[JournalEntry]) -> dict[str, str]:
    """What a reader would do to see the same, for each raw file."""
    return {entry.path: _origin(entry) for entry in journal if entry.path}


def _origin(entry: JournalEntry) -> str:
    if entry.op == "agent" and (asked := _AGENT_KEY.search(entry.key)):
        return f"the agent in rank {asked['rank']}, pid {asked['pid']}"
    return _WORDS.get(entry.op, f"{entry.op} ") + entry.key


def origin_of(source: str, known: Mapping[str, str]) -> str | None:
    """What the source of some evidence was on the host; None if nothing says it.

    A source may go on behind the file of the bundle: a member of an archive, a record of a dump.
    """
    if source in known:
        return known[source]
    path = max((path for path in known if source.startswith(path)), key=len, default=None)
    return None if path is None else known[path] + source[len(path) :]
