"""Takes in the user's files once for all probes: walks, unpacks, identifies and reads them.

A probe asks for the kinds of files that it reads (`Intake.of`). Files that were left out, cut or unreadable are in
`materials` with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from itertools import islice
from typing import Any

from ddx_tools.model.diagnosis import NOT_LOOKED_AT, Missing, ProbeStatus
from ddx_tools.model.errors import HostError, NotFound, NotRecorded
from ddx_tools.model.files import kinds as file_kinds
from ddx_tools.model.files.kinds import ARCHIVES, COMPRESSED, HEAD_BYTES, kind_of
from ddx_tools.model.files.names import shown
from ddx_tools.model.files.rank_names import facts_of_name, is_due
from ddx_tools.model.files.suffixes import PACKED, suffix
from ddx_tools.parsers.lines.kept_lines import KeptLines
from ddx_tools.parsers.lines.stream import read_lines
from ddx_tools.parsers.logs.log_lines import file_identity
from ddx_tools.sources.host import UNKNOWN_HOST, Host, Reply, Walk, WalkedFile
from ddx_tools.sources.kinds import (
    LONG_LOOK_BYTES,
    LOOK_BYTES,
    OTHER,
    TEXT,
    TextKind,
    is_error_file,
    is_log_name,
    is_note,
    kinds_of_text,
    may_be_text,
    settings_in,
)
from ddx_tools.sources.material import Material, TextPart
from ddx_tools.sources.raw import Raw, RawItem, Rows

ALL_BYTES = 256 << 20
"""Limit on all texts together that are kept in memory."""
_MOST_BYTES, _LEAST_BYTES = LONG_LOOK_BYTES, 16 << 10
"""Limits for one text; the rest of a longer text is read in place."""
_MOST_FILE_BYTES = 1 << 40
_MOST_SETTINGS = 500
"""The number of files searched for launch commands, which takes longest."""
_MOST_NOTES = 50
_MOST_NAMED = 20
_MOST_KEPT = 2_000
"""The number of texts of which some lines are kept."""
_WORKERS = 8
"""On a shared file system, most of the time is spent waiting for it."""
_WORTH_WORKERS = 64
_TEXTS = (None, file_kinds.FileKind.TABLE, file_kinds.FileKind.HEADER)
_READ_WHOLE = {
    TextKind.LOG,
    TextKind.NCCL,
    TextKind.RAS,
    TextKind.INSPECTOR,
    TextKind.MACHINE,
    TextKind.STACKS,
    TextKind.FINGERPRINTS,
    TextKind.SAMPLES,
}
"""Kinds whose reader continues beyond the part that was read, or reports the cut."""
_WORDS: dict[str, tuple[str, str]] = {
    file_kinds.FileKind.DUMP: ("flight record", "flight records"),
    file_kinds.FileKind.HEADER: ("flight record side-car", "flight record side-cars"),
    file_kinds.FileKind.TRACE: ("profiler trace", "profiler traces"),
    file_kinds.FileKind.DATABASE: ("SQLite database", "SQLite databases"),
    file_kinds.FileKind.SNAPSHOT: ("memory snapshot", "memory snapshots"),
    file_kinds.FileKind.MEMORY: ("memory report", "memory reports"),
    file_kinds.FileKind.CORE: ("core file", "core files"),
    TextKind.LOG: ("log", "logs"),
    TextKind.ERROR_FILE: ("error file", "error files"),
    TextKind.INSPECTOR: ("NCCL Inspector file", "NCCL Inspector files"),
    TextKind.STACKS: ("stack dump", "stack dumps"),
    TextKind.MACHINE: ("machine report", "machine reports"),
    TextKind.LAUNCH: ("environment or launch script", "environments or launch scripts"),
    TextKind.NOTE: ("note", "notes"),
    TextKind.PROGRAM: ("program", "programs"),
    TextKind.FINGERPRINTS: ("fingerprint file", "fingerprint files"),
    TextKind.SAMPLES: ("stack sample", "stack samples"),
}
"""The singular and the plural."""
_OTHER, _UNREAD = ("other file", "other files"), ("file that could not be read", "files that could not be read")


class Intake:
    """The files below some paths, with their kinds and texts; see `intake_of`."""

    def __init__(self, host: Host, paths: Sequence[str]) -> None:
        self.materials: list[Material] = []
        self.passed_over: list[str] = []
        """Skipped files that are no loss, as lines for a person."""
        self.left_out: list[str] = []
        """Skipped files that may be a loss, as lines for a person."""
        self.host = host
        self._left = ALL_BYTES
        self._whole: dict[str, list[TextPart]] = {}
        self._kept: dict[tuple[str, str], KeptLines] = {}
        self._take([material for path in paths for material in self._walked(path)])
        # In the order in which the user named them: later ones override earlier ones.
        tops = [path.rstrip("/") for path in paths]
        self.materials.sort(
            key=lambda found: (next((n for n, top in enumerate(tops) if found.path.startswith(top)), 0), found.path)
        )
        self._sniff_further()

    def of(self, *kinds: str) -> list[Material]:
        """The files of any of these kinds, ordered by the user's arguments and by path."""
        return [material for material in self.materials if material.kinds.intersection(kinds)]

    @property
    def unread(self) -> list[Material]:
        """The files that could not be read."""
        return [material for material in self.materials if material.error]

    def locate(self, material: Material, most_bytes: int, suffix_: str = "bin") -> Reply:
        """Locate a file without copying it. Raises HostError."""
        return self.host.locate(material.path, max_bytes=most_bytes, suffix=suffix_)

    def whole(self, text: Material) -> list[TextPart]:
        """A complete text; a long one is read in place. Raises HostError.

        If a bundle kept only its beginning and its end, these are the parts, and `why_not` says so.
        """
        if text.path not in self._whole and not text.cut:
            self._whole[text.path] = [self._part(text.path, text.source, text.head)]
        elif text.path not in self._whole:
            replies = [self.locate(text, _MOST_FILE_BYTES, "log")]
            if replies[0].truncated:
                text.why_not = "the bundle has only its beginning and its end"
                with suppress(NotRecorded):
                    replies.append(self.host.read(text.path, max_bytes=_MOST_FILE_BYTES, tail=True, suffix="log"))
            self._whole[text.path] = [
                self._part(text.path, self._source(text, reply), reply.data, reply.file) for reply in replies
            ]
        return self._whole[text.path]

    def _part(self, path: str, source: str, data: bytes, file: str | None = None) -> TextPart:
        """A part of a text; its lines that stand out are kept."""
        kept = self._kept.setdefault((path, source), KeptLines())
        return TextPart(source, data, file, wanted_by=[kept])

    def read_lines(self) -> Iterator[str]:
        """Read each text once for all consumers registered so far, in the order in which the user passed them.

        Yields lines for a person about texts that could no longer be read.
        """
        for material in self.materials:
            for part in self._whole.get(material.path, ()):
                if not part.wanted_by:
                    continue
                try:
                    with part.open() as stream:
                        part.reading = read_lines(stream, part.wanted_by)
                except (OSError, HostError):  # renamed, removed or replaced since
                    material.why_not = "it disappeared while it was being read"
                    part.reading = read_lines(BytesIO(), part.wanted_by)
                    yield f"{material.path}: {material.why_not}."
                part.wanted_by.clear()

    def beginning(self, text: Material, most_bytes: int) -> bytes:
        """Read the first bytes of a text. Raises HostError."""
        if not text.cut or len(text.head) >= most_bytes:
            return text.head[:most_bytes]
        return self.host.read(text.path, max_bytes=most_bytes, suffix="log").data

    def end(self, text: Material, most_bytes: int) -> bytes:
        """Read the last bytes of a text. Raises HostError."""
        if not text.cut:
            return text.head[-most_bytes:]
        if len(text.tail) >= most_bytes:
            return text.tail[-most_bytes:]
        return self.host.read(text.path, max_bytes=most_bytes, tail=True, suffix="log").data

    def _source(self, material: Material, reply: Reply) -> str:
        """The source name for evidence: for the user's files, the path that opens them."""
        return material.path if self.host.name == UNKNOWN_HOST else reply.source or material.path

    # --- walking and opening

    def _walked(self, path: str) -> list[Material]:
        try:
            walk = self.host.walk(path)
        except HostError as error:
            self.materials.append(Material(path, named=True, error=error, why_not=error.message))
            return []
        above = path.rstrip("/").count("/") + 1
        return self._listed(walk, lambda file: (file.path == path, max(0, file.path.count("/") - above)))

    def _unpacked(self, archive: Material) -> list[Material]:
        try:
            walk = self.host.unpack(archive.path, named=archive.named)
        except HostError as error:
            archive.error, archive.why_not = error, error.message
            self.materials.append(archive)
            return []
        # A compressed file counts as named by the user, a member of an archive does not.
        if not (
            archive.may_tell or is_due(archive.path) or suffix(archive.name) in PACKED
        ):  # data, such as a checkpoint
            walk = replace(walk, left_out=[])
        found = self._listed(walk, lambda file: (archive.named and file.path == archive.path, archive.depth))
        for material in found:
            material.written_ns = material.written_ns or archive.written_ns
        return found

    def _listed(self, walk: Walk, place: Callable[[WalkedFile], tuple[bool, int]]) -> list[Material]:
        self.passed_over += [line for line in walk.passed_over if line not in self.passed_over]
        self.left_out += [line for line in walk.left_out if line not in self.left_out]
        return [
            Material(
                file.path, *place(file), file.size_bytes, file.written_ns, damaged=not file.whole, facts=file.facts
            )
            for file in walk.files
        ]

    def _take(self, found: list[Material], *, opening: bool = True) -> None:
        """Identify each file, open archives, and keep the rest."""
        found = list({material.path: material for material in found}.values())
        most = max(_LEAST_BYTES, min(_MOST_BYTES, self._left // (2 * max(1, len(found)))))
        packed: list[Material] = []
        cut: list[Material] = []
        for material, reply in zip(found, self._looks(found, most), strict=True):
            if reply is None:
                continue
            kind = _kind(reply)
            if opening and kind in COMPRESSED | ARCHIVES:
                packed.append(material)
                continue
            self.materials.append(material)
            material.source = self._source(material, reply)
            if kind is not None:
                material.kinds.add(kind)
            if kind in _TEXTS and material.may_tell:
                if not may_be_text(reply.data) or reply.kind == OTHER:
                    material.why_not = "neither a text nor a known record"
                    continue
                material.head, material.cut, material.tail = reply.data, reply.truncated, reply.end or b""
                cut += [material] if material.cut and reply.end is None else []
                self._left -= len(reply.data) + len(material.tail)
        for material in cut:
            self._read_end(material)
        for archive in packed:
            self._take(self._unpacked(archive), opening=False)

    def _looks(self, found: list[Material], most: int) -> Iterator[Reply | None]:
        """Yield a look at each file; None if it cannot be read or was not read at capture."""

        def look(material: Material) -> Reply | HostError:
            try:
                long = most if material.may_tell else HEAD_BYTES
                return self.host.look(material.path, max_bytes=long, end_bytes=_end_bytes(material))
            except HostError as error:
                return error

        with ThreadPoolExecutor(_WORKERS) as pool:
            replies = pool.map(look, found) if len(found) >= _WORTH_WORKERS else map(look, found)
            for material, reply in zip(found, replies, strict=True):
                if isinstance(reply, Reply):
                    yield reply
                    continue
                # A file that has disappeared, or was a pipe or a socket, is left out.
                gone = isinstance(reply, NotFound) and not material.named
                if not (gone or isinstance(reply, NotRecorded)):
                    material.error, material.why_not = reply, reply.message
                    self.materials.append(material)
                yield None

    def _read_end(self, material: Material) -> None:
        """Read the end of a text that is longer than its share, if a bundle has the end as a separate answer."""
        try:
            material.tail = self.end(material, _end_bytes(material))
        except HostError as error:
            material.why_not = f"only its beginning was read ({error.message})"
        self._left -= len(material.tail)

    # --- what it holds

    def _sniff_further(self) -> None:
        texts = []
        for material in self.materials:
            # A rank's side-car beside its record can hold only the exception that it raised.
            if file_kinds.FileKind.HEADER not in material.kinds:
                texts += [material] if material.head else []
            elif is_error_file(material.head):
                material.kinds.add(TextKind.ERROR_FILE)
        for material in texts:
            material.kinds |= kinds_of_text(material.path, material.head, material.tail, named=material.named)
        # Logs are searched for launch commands last, since there are many.
        texts.sort(key=lambda material: is_log_name(material.path))
        for material in texts[:_MOST_SETTINGS]:
            if TextKind.FINGERPRINTS not in material.kinds:
                material.kinds |= settings_in(material.path, material.head, named=material.named)
        for material in texts:
            if material.cut and not material.kinds & _READ_WHOLE:
                material.why_not = f"only its first {len(material.head) >> 10} KiB were read"
        if len(texts) > _MOST_SETTINGS:
            self.left_out.append(f"Only {_MOST_SETTINGS} of {len(texts)} texts were searched for launch commands.")
        notes = (m for m in texts if is_note(m.path, m.head, m.depth, named=m.named))
        for material in islice(notes, _MOST_NOTES):
            material.kinds.add(TextKind.NOTE)

    # --- what is reported about it

    def counts(self) -> str:
        """A summary of the files: `16 flight records, 1 log, 2 other files`."""
        seen = Counter({_WORDS[file_kinds.FileKind.DUMP]: 0, _WORDS[TextKind.LOG]: 0})
        for material in self.materials:
            kinds = {_WORDS[kind] for kind in material.kinds if kind in _WORDS}
            seen.update(kinds or {_UNREAD if material.error else _OTHER})
        told = sorted(seen.items(), key=lambda item: item[0][1])
        return ", ".join(f"{count} {one if count == 1 else several}" for (one, several), count in told)

    def note_gaps(self, raw: Raw, why: str) -> None:
        """Add to a capture what could not be read or was left out; `why` says why that matters."""
        raw.keep.append(self)
        likely = [m for m in self.unread if m.may_tell or is_due(m.path)]
        for material in likely[:_MOST_NAMED]:
            assert material.error is not None
            error = type(material.error)(material.error.message.removeprefix(f"{material.path}: "), material.error.help)
            raw.failed(shown(material.path), error, why)
        if len(likely) > _MOST_NAMED:
            raw.problems.append(f"{len(likely) - _MOST_NAMED} more files cannot be read.")
        if self.left_out:
            raw.problems += map(shown, self.left_out)
            raw.status = ProbeStatus.PARTIAL

    def gaps(self) -> list[Missing]:
        """The texts that were cut or left out, as gaps."""
        gaps = [f"{shown(m.path)}: {m.why_not}" for m in self.materials if m.cut and m.why_not]
        return [Missing(what=gap, why_it_matters=NOT_LOOKED_AT) for gap in [*gaps, *map(shown, self.left_out)]]

    def rows(self) -> Rows:
        """The rows of `materials`, and of the kept lines of their texts."""
        for material in self.materials:
            wanted = material.head and TextKind.INSPECTOR not in material.kinds  # its lines are all alike
            if wanted and material.path not in self._whole and len(self._kept) < _MOST_KEPT:
                kept = self._kept[material.path, material.source] = KeptLines()
                read_lines(BytesIO(material.head), [kept])
        lines = [row for (path, source), kept in self._kept.items() for row in kept.rows(path, source)]
        return {
            "materials": [_row(material, self.host.name) for material in self.materials],
            "kept_lines": lines,
        }


def read_lines_of(raw: Raw) -> None:
    """Read the lines that a capture has registered for from the user's texts.

    Each text is read once, for all captures that registered for it. Problems are added to `raw`.
    """
    for taken in raw.keep:
        if isinstance(taken, Intake):
            raw.problems += taken.read_lines()


def _end_bytes(material: Material) -> int:
    """How many bytes of the end of a long text are used to identify it."""
    return LONG_LOOK_BYTES if material.named else LOOK_BYTES


def _kind(reply: Reply) -> file_kinds.FileKind | None:
    """The kind of file that a look reports; in version 1 bundles it is derived from the bytes."""
    if reply.kind is None:
        return kind_of(reply.data[:HEAD_BYTES])
    return None if reply.kind in (TEXT, OTHER) else file_kinds.FileKind(reply.kind)


def intake_of(host: Host, paths: Sequence[str]) -> Intake:
    """The intake of some paths, made on the first request and shared by all later requests to this host."""
    key = tuple(paths)
    if key not in host.intakes:
        host.intakes[key] = Intake(host, paths)
    taken: Intake = host.intakes[key]
    return taken


def take_files(host: Host, raw: Raw, paths: Sequence[str], kinds: Mapping[str, str], most_bytes: int, why: str) -> None:
    """Add files of some kinds below the paths to `raw`, without copying them; other files are ignored.

    `kinds` maps each kind to its suffix in a bundle. An item has the kind of its file, and the facts `path` and `rank`
    (from the file name). `why` says why an unreadable file matters.
    """
    taken = intake_of(host, paths)
    taken.note_gaps(raw, why)
    for kind, kept_as in kinds.items():
        for material in taken.of(kind):
            label = shown(material.path)
            try:
                reply = taken.locate(material, most_bytes, kept_as)
            except HostError as error:
                raw.failed(label, error, why)
                continue
            facts = {"path": label, "rank": facts_of_name(material.name).rank}
            raw.items.append(RawItem(kind, reply.data, material.source, facts, reply.file))
    found = ", ".join(f"{len(raw.of(kind))} {_WORDS[kind][1]}" for kind in kinds)
    raw.searched.append(f"{len(taken.materials)} files in {shown(', '.join(paths))}: {found}")


def _row(material: Material, host: str) -> dict[str, Any]:
    named, identity = facts_of_name(material.name), file_identity(material.name)
    is_whole_text = material.head and not material.cut
    return {
        "path": material.path,
        "kinds": ", ".join(sorted(material.kinds)) or None,
        "rank": named.rank if identity.rank is None else identity.rank,
        "host": named.host or (None if host == UNKNOWN_HOST else host),
        "attempt": identity.attempt,
        "size_bytes": material.size_bytes,
        "lines": material.head.count(b"\n") if is_whole_text else None,
        "why_not_read": material.why_not,
        "written_ns": material.written_ns,
        "source": material.source or material.path,
    }
