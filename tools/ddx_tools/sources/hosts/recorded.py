"""Hosts that record their answers, and hosts that answer from a recording."""

from __future__ import annotations

import dataclasses
import glob
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath

from ddx_tools.model.errors import UnreadableInput
from ddx_tools.model.grouping import gathered
from ddx_tools.sources.bundle import OF_REPLIES, Bundle, BundleWriter, JournalEntry, valid_text
from ddx_tools.sources.host import Host, HostCall, Reply
from ddx_tools.sources.hosts.redacted_reply import redacted_reply
from ddx_tools.sources.hosts.unpacked import Unpacked

_MOMENTS = frozenset({"stack", "threads", "ras"})
"""Answers that are valid only for their moment. Given twice, one would suggest that nothing moved in between."""

_Question = tuple[str, str, bool | None]
"""Operation, key and, for a file, whether its end is asked for; None in journals that lack this (ddx 0.1)."""


class RecordingHost(Host):
    """Passes calls on to another host and writes every answer into a bundle.

    Secrets are redacted here, before anything is written; the caller gets what was written, so that a replay sees
    exactly what the live capture saw.
    """

    def __init__(self, inner: Host, writer: BundleWriter, section: str) -> None:
        self.name = inner.name
        self._inner = inner
        self._writer = writer
        self._section = section

    def pause(self, seconds: float) -> None:
        """Wait as the live host does."""
        self._inner.pause(seconds)

    def answer(self, call: HostCall) -> Reply:
        """Get the live answer, redact it and record it."""
        reply = self._inner.answer(call)
        reply = redacted_reply(call, reply, self._writer.redacted, files=self._writer.kept)
        source = self._writer.write(self.name, self._section, call, reply, time.time())
        if reply.end is not None:  # a replay asks for the end separately
            asked = HostCall("read", call.key, {"max_bytes": call.options["end_bytes"], "tail": True}, call.suffix)
            self._writer.write(self.name, self._section, asked, Reply(reply.end, truncated=True), time.time())
        file = self._writer.file_of(source) if reply.file else None
        return dataclasses.replace(reply, source=source, file=file)


class RecordedHost(Host):
    """Answers from a bundle. A question not asked at capture is `not_recorded`, never "healthy"."""

    def __init__(self, bundle: Bundle, name: str, section: str = "") -> None:
        """A host of a bundle for one probe: answers to its own questions (`section`) come first.

        Without a section, and in version 1 bundles, the answers to all probes form one sequence.
        """
        self.name = name
        self._bundle = bundle
        self._journal: dict[_Question, dict[int, JournalEntry]] = {}
        own = {section, ""}
        asked = gathered(((entry.op, entry.key, entry.tail), entry) for entry in bundle.by_host.get(name, ()))
        for question, entries in asked.items():
            mine = [entry for entry in entries if entry.section in own] if section else []
            entries = mine or [entry for entry in entries if entry.section == entries[0].section]
            known = self._journal[question] = {}
            for entry in sorted(entries, key=lambda entry: entry.occurrence):
                known[entry.occurrence if entry.tail is None else len(known)] = entry
        self._asked: dict[_Question, int] = {}
        self._lock = threading.Lock()
        self._unpacked = Unpacked()
        self._older: dict[str, Callable[[HostCall], Reply]] = {
            "walk": self._walked,
            "look": self._looked_at,
            "unpack": self._opened,
        }

    def pause(self, seconds: float) -> None:
        """Do nothing: no time passes in a bundle."""

    def answer(self, call: HostCall) -> Reply:
        """The recorded answer to the same occurrence of the question.

        If it is asked more often than at capture, the last answer is repeated, unless it was valid only for its moment.
        """
        call = dataclasses.replace(call, key=valid_text(call.key))
        if call.op == "read" and (file := self._unpacked.file(call.key)):
            return Reply(file=str(file)) if call.options.get("in_place") else Reply(file.read_bytes())
        if call.op in self._older and (call.op, call.key, None) not in self._journal:
            try:
                return self._older[call.op](call)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError) as error:
                damaged = f"{call.op} {call.key[:200]}: its recording cannot be read ({type(error).__name__})"
                return Reply(error="failed", message=damaged, help="Capture the bundle again.", rc=1)
            except UnreadableInput as error:
                return _not_recorded(error.message, "The bundle is incomplete: copy it again.")
        return self._recorded(call)

    def _recorded(self, call: HostCall) -> Reply:
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
                f"the bundle has no answer to: {call.op} {call.key}",
                "This was not asked when the bundle was captured; its absence says nothing about the job.",
            )
        entry = self._long_enough(entry, entries, call)
        return self._reply(entry, in_place=bool(call.options.get("in_place")))

    def _reply(self, entry: JournalEntry, *, in_place: bool) -> Reply:
        data, file = b"", None
        try:
            if entry.path and in_place:
                file = str(self._bundle.file(entry.path))
            elif entry.path:
                data = self._bundle.read(entry.path)
        except UnreadableInput as error:
            return _not_recorded(error.message, "The bundle is incomplete: copy it again from where it was captured.")
        kept = {name: getattr(entry, name) for name in OF_REPLIES}
        return Reply(data, source=entry.path or "", file=file, **kept)

    # --- version 1 bundles have different questions about files

    def _walked(self, call: HostCall) -> Reply:
        """The files below a path, as far as they were listed or read."""
        listed = next((e for op in ("files", "glob") for e in self._entries_of(op, call.key)), None)
        surveyed = next(iter(self._entries_of("survey", call.key)), None)
        read = any(self._journal.get(("read", call.key, tail)) for tail in (None, False, True))
        if not (listed or surveyed or read):
            return _not_recorded(
                f"the bundle does not say which files were below {call.key}", "This was not asked at capture."
            )
        survey = json.loads(self._bundle.read(surveyed.path)) if surveyed and surveyed.path else {}
        paths = [str(path) for path in json.loads(self._bundle.read(listed.path))] if listed and listed.path else []
        folders = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
        files = dict.fromkeys(path for path in paths if not path.endswith("/") and path not in folders)
        files |= dict.fromkeys(str(path) for path, _, _ in survey.get("matter", ()))
        times = {str(path): int(time) for path, time in survey.get("written_ns", {}).items()}
        found = {"files": [[path, None, times.get(path)] for path in files or {call.key: None}]}
        return Reply(
            json.dumps({**found, **{key: survey.get(key, []) for key in ("passed_over", "left_out")}}).encode()
        )

    def _entries_of(self, op: str, path: str) -> Iterable[JournalEntry]:
        key = f"{glob.escape(path.rstrip('/'))}/**" if op == "glob" else path
        return [entry for entry in self._journal.get((op, key, None), {}).values() if entry.path]

    def _looked_at(self, call: HostCall) -> Reply:
        """A file as it was first read completely, or else its longest part that was read."""
        if file := self._unpacked.file(call.key):
            return Reply(file.read_bytes())
        entries = [e for tail in (None, False, True) for e in self._journal.get(("read", call.key, tail), {}).values()]
        if not entries:
            return _not_recorded(f"{call.key} was not read when the bundle was captured", "")
        whole = [entry for entry in entries if not (entry.truncated or entry.tail or entry.error)]
        # If a log grew, the version read by the log probe is the one that was judged.
        whole.sort(key=lambda entry: "/job_log/" not in (entry.path or ""))
        entry = next(iter(whole), max(entries, key=lambda entry: (not entry.tail, self._size_bytes(entry))))
        return self._reply(entry, in_place=False)

    def _opened(self, call: HostCall) -> Reply:
        """An archive that was recorded unopened."""
        read = [e for tail in (None, False) for e in self._journal.get(("read", call.key, tail), {}).values()]
        kept = [entry for entry in read if entry.path and not entry.truncated]
        if not kept or not kept[0].path:
            return _not_recorded(f"the bundle does not contain {call.key}", "")
        file = self._bundle.file(max(kept, key=self._size_bytes).path or "")
        return Reply(self._unpacked.unpack(call.key, file, named=call.options["named"]))

    def _as_noted(self, call: HostCall) -> _Question:
        """The question in the form that identifies it in the journal."""
        unnoted = (call.op, call.key, None)
        if call.op != "read" or unnoted in self._journal:
            return unnoted
        return call.op, call.key, bool(call.options.get("tail"))

    def _answers(self, question: _Question) -> Mapping[int, JournalEntry]:
        """The answers to a question, by occurrence. A complete file answers for its beginning and its end."""
        op, key, tail = question
        if question in self._journal or tail is None:
            return self._journal.get(question, {})
        others = self._journal.get((op, key, not tail), {})
        return dict(enumerate(entry for entry in others.values() if not entry.truncated))

    def _long_enough(self, entry: JournalEntry, entries: Mapping[int, JournalEntry], call: HostCall) -> JournalEntry:
        """The answer, or a longer one to the same question.

        The key of a question does not include a size: run alone, a probe would otherwise get an earlier, shorter answer
        that another probe read only to identify the file.
        """
        # The end of a file is recorded without the line that it begins in.
        enough = call.options["max_bytes"] // (2 if call.options.get("tail") else 1) if call.op == "read" else 0
        if not entry.truncated or self._size_bytes(entry) >= enough:
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
