"""A host that holds one file: what somebody said on the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ddx_tools.sources.host import Host, HostCall, Reply

NOTE_PATH = "notes.txt"
"""The name under which notes of the command line are asked for; a file that somebody brings has an absolute path."""


class WrittenNotes(Host):
    """Answers the reading of `NOTE_PATH` with notes, one paragraph each, and knows of nothing else."""

    def __init__(self, name: str, notes: Sequence[str]) -> None:
        self.name = name
        self._data = "\n\n".join(note.strip() for note in notes).encode("utf-8", "replace") + b"\n"

    def pause(self, seconds: float) -> None:
        """Nothing changes with time."""

    def answer(self, call: HostCall) -> Reply:
        """The notes."""
        if (call.op, call.key) == ("walk", NOTE_PATH):
            listed = {"files": [[NOTE_PATH, len(self._data), None]], "passed_over": [], "left_out": []}
            return Reply(json.dumps(listed).encode())
        if (call.op, call.key) != ("look", NOTE_PATH):
            return Reply(error="not_found", message=f"{call.key}: no such file", rc=1)
        most = int(call.options["max_bytes"])
        return Reply(self._data[:most], truncated=len(self._data) > most)
