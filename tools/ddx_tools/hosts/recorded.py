"""Hosts that keep what they answer, and hosts that answer from what was kept."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping

from ddx_tools.bundle import Bundle, BundleWriter, JournalEntry
from ddx_tools.errors import UnreadableInput
from ddx_tools.hosts.base import Call, Host, Reply
from ddx_tools.sources.redaction.files import redact_file
from ddx_tools.sources.redaction.text import redact

_TEXT_SUFFIXES = {"txt", "json", "log"}

_MOMENTS = frozenset({"stack", "threads"})
"""Answers that hold for their moment only. One of them given twice would say that nothing moved in between."""

_Question = tuple[str, str, bool | None]
"""Operation, key and, of a file, whether its end is asked for; None in the journals that do not tell (ddx 0.1)."""


class RecordingHost(Host):
    """Passes calls on to another host and writes every answer into a bundle.

    Secrets are redacted here, before anything is written; what the caller gets is what was written, so that
    a replay sees exactly what the live look saw.
    """

    def __init__(self, inner: Host, writer: BundleWriter, section: str) -> None:
        self.name = inner.name
        self._inner = inner
        self._writer = writer
        self._section = section

    def pause(self, seconds: float) -> None:
        """Wait as the live host does."""
        self._inner.pause(seconds)

    def answer(self, call: Call) -> Reply:
        """The live answer, redacted and kept."""
        from ddx_tools.sources.redaction.archives import redact_archive

        reply = self._inner.answer(call)
        counts = self._writer.redacted
        data = reply.data
        if call.op == "read" and self._writer.kept:
            data = redact_archive(data)
        if call.suffix in _TEXT_SUFFIXES or (call.op == "read" and self._writer.kept):
            data = redact_file(data, counts)
        reply = dataclasses.replace(reply, data=data, message=redact(reply.message, counts), help=redact(reply.help))
        source = self._writer.write(self.name, self._section, call, reply, time.time())
        file = self._writer.file_of(source) if reply.file else None
        return dataclasses.replace(reply, source=source, file=file)


class RecordedHost(Host):
    """Answers out of a bundle. What nobody asked at capture is `not_recorded`, never "healthy"."""

    def __init__(self, bundle: Bundle, name: str) -> None:
        self.name = name
        self._bundle = bundle
        self._journal: dict[_Question, dict[int, JournalEntry]] = {}
        for entry in sorted(bundle.manifest.journal, key=lambda entry: entry.occurrence):
            if entry.host == name:
                known = self._journal.setdefault((entry.op, entry.key, entry.tail), {})
                known[entry.occurrence if entry.tail is None else len(known)] = entry
        self._asked: dict[_Question, int] = {}
        self._lock = threading.Lock()

    def pause(self, seconds: float) -> None:
        """Time stands still in a bundle."""

    def answer(self, call: Call) -> Reply:
        """The answer of the same question at its same occurrence.

        What is asked more often than at capture gets the last answer, unless that stood for its moment.
        """
        question = self._as_noted(call)
        with self._lock:
            occurrence = self._asked.get(question, 0)
            self._asked[question] = occurrence + 1
        entries = self._answers(question)
        entry = entries.get(occurrence)
        if entry is None and entries and occurrence > max(entries) and call.op not in _MOMENTS:
            entry = entries[max(entries)]
        if entry is None:
            return _not_recorded(
                f"the bundle holds no answer to: {call.op} {call.key}",
                "Nobody asked this when the bundle was captured; it says nothing about the job.",
            )
        entry = self._long_enough(entry, entries, call)
        data, file = b"", None
        try:
            if entry.path and call.options.get("in_place"):
                file = str(self._bundle.file(entry.path))
            elif entry.path:
                data = self._bundle.read(entry.path)
        except UnreadableInput as error:
            return _not_recorded(error.message, "The bundle is incomplete: copy it again from where it was captured.")
        source = entry.path or ""
        return Reply(data, entry.rc, entry.truncated, entry.error, entry.message, entry.help, source, file)

    def _as_noted(self, call: Call) -> _Question:
        """The question as the journal tells it from others."""
        unnoted = (call.op, call.key, None)
        if call.op != "read" or unnoted in self._journal:
            return unnoted
        return call.op, call.key, bool(call.options.get("tail"))

    def _answers(self, question: _Question) -> Mapping[int, JournalEntry]:
        """What answers a question, by occurrence. A whole file is its end as well as its beginning."""
        op, key, tail = question
        if question in self._journal or tail is None:
            return self._journal.get(question, {})
        others = self._journal.get((op, key, not tail), {})
        return dict(enumerate(entry for entry in others.values() if not entry.truncated))

    def _long_enough(self, entry: JournalEntry, entries: Mapping[int, JournalEntry], call: Call) -> JournalEntry:
        """The answer, or one to the same question that was cut later.

        The key of a question has no size in it: run alone, a probe would get what another one read before it,
        perhaps only to see what kind of file it is.
        """
        if call.op != "read" or not entry.truncated or self._size_bytes(entry) >= call.options["max_bytes"]:
            return entry
        whole = (other for other in entries.values() if other.path and not other.truncated)
        return next(whole, max(entries.values(), key=self._size_bytes))

    def _size_bytes(self, entry: JournalEntry) -> int:
        try:
            return self._bundle.file(entry.path).stat().st_size if entry.path else 0
        except (OSError, UnreadableInput):
            return 0


def _not_recorded(message: str, help_text: str) -> Reply:
    return Reply(error="not_recorded", message=message[:300], help=help_text, rc=1)
