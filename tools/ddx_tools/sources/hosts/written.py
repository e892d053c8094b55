"""A host with a single file: the notes from the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ddx_tools.sources.host import Host, HostCall, Reply

NOTE_PATH = "notes.txt"
"""The path for notes from the command line; the user's files have absolute paths."""


class WrittenNotes(Host):
    """Answers only reads of `NOTE_PATH`, with the notes as one paragraph each."""

    def __init__(self, name: str, notes: Sequence[str]) -> None:
        self.name = name
        self._data = "\n\n".join(note.strip() for note in notes).encode("utf-8", "replace") + b"\n"

    def pause(self, seconds: float) -> None:
        """Do nothing: the notes do not change."""

    def answer(self, call: HostCall) -> Reply:
        """Answer a read of the notes; anything else is not found."""
        if (call.op, call.key) == ("walk", NOTE_PATH):
            listed = {"files": [[NOTE_PATH, len(self._data), None]], "passed_over": [], "left_out": []}
            return Reply(json.dumps(listed).encode())
        if (call.op, call.key) != ("look", NOTE_PATH):
            return Reply(error="not_found", message=f"{call.key}: no such file", rc=1)
        most = int(call.options["max_bytes"])
        return Reply(self._data[:most], truncated=len(self._data) > most)
