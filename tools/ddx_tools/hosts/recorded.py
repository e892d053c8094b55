"""Hosts that keep what they answer, and hosts that answer from what was kept."""

from __future__ import annotations

import dataclasses
import threading
import time

from ddx_tools.bundle import Bundle, BundleWriter, JournalEntry
from ddx_tools.hosts.base import Call, Host, Reply
from ddx_tools.redact import redact

_TEXT_SUFFIXES = {"txt", "json"}


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
        reply = self._inner.answer(call)
        if call.suffix in _TEXT_SUFFIXES and b"\0" not in reply.data[:8192]:
            reply = dataclasses.replace(reply, data=_redacted(reply.data))
        source = self._writer.write(self.name, self._section, call, reply, time.time())
        return dataclasses.replace(reply, source=source)


class RecordedHost(Host):
    """Answers out of a bundle. What nobody asked at capture is `not_recorded`, never "healthy"."""

    def __init__(self, bundle: Bundle, name: str) -> None:
        self.name = name
        self._bundle = bundle
        self._journal: dict[tuple[str, str], list[JournalEntry]] = {}
        for entry in bundle.manifest.journal:
            if entry.host == name:
                self._journal.setdefault((entry.op, entry.key), []).append(entry)
        for entries in self._journal.values():
            entries.sort(key=lambda entry: entry.occurrence)
        self._asked: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def pause(self, seconds: float) -> None:
        """Time stands still in a bundle."""

    def answer(self, call: Call) -> Reply:
        """The answer of the same question at its same occurrence; the last one if it is asked more often."""
        identity = (call.op, call.key)
        with self._lock:
            occurrence = self._asked.get(identity, 0)
            self._asked[identity] = occurrence + 1
        entries = self._journal.get(identity)
        if not entries:
            return Reply(
                error="not_recorded",
                message=f"the bundle holds no answer to: {call.op} {call.key}"[:300],
                help="Nobody asked this when the bundle was captured; it says nothing about the job.",
            )
        entry = entries[min(occurrence, len(entries) - 1)]
        data = self._bundle.read(entry.path) if entry.path else b""
        return Reply(data, entry.rc, entry.truncated, entry.error, entry.message, entry.help, source=entry.path or "")


def _redacted(data: bytes) -> bytes:
    text = data.decode("utf-8", "surrogateescape")
    return redact(text).encode("utf-8", "surrogateescape")
