"""A bundle: one incident as a directory (or a `.tar.zst` of it).

    manifest.json    what was asked of which host and when; what failed and why
    raw/<content>    the answers, byte for byte (after redaction), each content once

The raw files are authoritative; rows, findings and the diagnosis can be rebuilt from them. The manifest's journal has
one entry per call to a host, so that a recorded host gives the same answers to the same questions. In version 1
bundles, the files in `raw` have the journal's names for answers, and many contents occur twice.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import json
import re
import tempfile
import threading
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from ddx_tools.knowledge.validation import first_mistake
from ddx_tools.model.diagnosis import Missing
from ddx_tools.model.errors import UnreadableInput, UsageError
from ddx_tools.model.grouping import gathered
from ddx_tools.model.version import __version__
from ddx_tools.redaction.files import copy_redacted
from ddx_tools.redaction.structures import redact_value
from ddx_tools.redaction.text import Counts, redact
from ddx_tools.sources.asked_host import AskedHost
from ddx_tools.sources.host import HostCall, Reply
from ddx_tools.sources.packed_bundle import MANIFEST, PACKED_SUFFIX, begins_as_a_bundle, not_writable, unpack
from ddx_tools.sources.temporary import temporary_directory


class JournalEntry(BaseModel, extra="forbid"):
    """One call to a host, and the file with its answer."""

    host: str
    op: str
    key: str
    occurrence: int
    at: float = Field(description="Wall clock of the capture, seconds since the epoch.")
    section: str = Field("", description="The asker: a probe, or the intake of the user's files.")
    path: str | None = Field(None, description="Name of the answer, used in evidence; null for an empty answer.")
    content: str | None = Field(
        None, description="File with its bytes, inside the bundle; null in version 1, where it is `path`."
    )
    rc: int = 0
    truncated: bool = False
    kind: str | None = Field(None, description="For a look at a file: the kind of file.")
    tail: bool | None = Field(None, description="For a file: whether its end was asked for; null if not recorded.")
    error: str | None = None
    message: str = ""
    help: str = ""


OF_REPLIES = ("rc", "truncated", "kind", "error", "message", "help")
"""The fields that an entry copies from a reply."""


class ProbeRun(BaseModel, extra="forbid"):
    """One probe run at capture."""

    probe: str
    host: str
    args: dict[str, Any]
    status: str
    problems: list[str] = Field(default_factory=list)
    missing: list[Missing] = Field(default_factory=list)


class Manifest(BaseModel, extra="forbid"):
    """`manifest.json`."""

    schema_: Literal["ddx.bundle/1", "ddx.bundle/2"] = Field("ddx.bundle/2", alias="schema")
    ddx_version: str = __version__
    created: str
    target: list[str] = Field(default_factory=list)
    hosts: list[str] = Field(default_factory=list)
    asked: list[AskedHost] = Field(
        default_factory=list, description="The hosts that were asked; empty if only one was captured."
    )
    probes: list[ProbeRun] = Field(default_factory=list)
    journal: list[JournalEntry] = Field(default_factory=list)
    redacted: dict[str, int] = Field(default_factory=dict, description="Number of redacted secrets, by kind.")


_BEING_WRITTEN = ".being-written"
"""The file by which a capture claims a directory: of two concurrent captures, only one succeeds."""


def _take(directory: Path) -> None:
    """Claim a new or empty directory. Raises UsageError if it is not empty or another capture has claimed it."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        empty = not any(directory.iterdir()) and _is_first(directory)
    except OSError as error:
        raise not_writable(directory, error) from error
    if not empty:
        raise UsageError(f"{directory} is not empty", "Use another name, or replace it: --force")


def _is_first(directory: Path) -> bool:
    try:
        (directory / _BEING_WRITTEN).touch(exist_ok=False)
    except FileExistsError:
        return False
    return len(list(directory.iterdir())) == 1


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Claim a new directory that no other capture writes to during the block. Raises UsageError."""
    _take(directory)
    try:
        yield
    finally:
        (directory / _BEING_WRITTEN).unlink(missing_ok=True)
        with suppress(OSError):  # it holds the bundle
            directory.rmdir()


class BundleWriter:
    """Writes a bundle during a capture. Safe to use from several threads."""

    def __init__(
        self, directory: Path, target: list[str], *, kept: bool = True, now: dt.datetime | None = None
    ) -> None:
        _take(directory)
        self.directory = directory
        self.kept = kept
        created = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        self.manifest = Manifest(created=created, target=target)
        self.redacted: Counts = Counter()
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str, str, str], int] = {}
        self._files: dict[str, str] = {}
        """The files of answers left in place, by their names in the bundle."""

    def write(self, host: str, section: str, call: HostCall, reply: Reply, at: float) -> str:
        """Save one answer; return its path inside the bundle ("" for an answer without bytes).

        The question is redacted as well: a path or a command may contain a secret.
        """
        call = dataclasses.replace(call, key=redact(call.key, self.redacted))
        with self._lock:
            identity = (host, section, call.op, call.key)
            occurrence = self._seen[identity] = self._seen.get(identity, -1) + 1
            if host not in self.manifest.hosts:
                self.manifest.hosts.append(host)
        path = _answer_path(host, section, call, occurrence) if reply.data or reply.file else None
        content = None
        if path and not self.kept:
            # The bundle is temporary: nobody will open it, so gigabytes of dumps need not be copied.
            self._files[path] = str(Path(reply.file).absolute()) if reply.file else ""
        elif path:
            try:
                content = self._keep(call, reply)
            except OSError as error:
                raise not_writable(self.directory, error) from error
            self._files[path] = str(self.directory / content)
        entry = JournalEntry(
            host=host,
            op=call.op,
            key=call.key,
            occurrence=occurrence,
            at=at,
            section=section,
            path=path,
            content=content,
            tail=bool(call.options.get("tail")) if call.op == "read" else None,
            **{name: getattr(reply, name) for name in OF_REPLIES},
        )
        with self._lock:
            self.manifest.journal.append(entry)
        return path or ""

    def _keep(self, call: HostCall, reply: Reply) -> str:
        """Write the bytes of an answer unless they exist already; return their file inside the bundle."""
        folder = self.directory / "raw"
        folder.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            written = Path(file.name)
        try:
            if reply.file:
                copy_redacted(Path(reply.file), written, self.redacted)
            else:
                written.write_bytes(reply.data)
            with written.open("rb") as file:
                name = f"raw/{hashlib.file_digest(file, 'sha256').hexdigest()[:_DIGEST_LETTERS]}.{call.suffix}"
        except BaseException:
            written.unlink(missing_ok=True)
            raise
        written.chmod(0o644)
        written.replace(self.directory / name)
        return name

    def file_of(self, path: str) -> str:
        """The file on this machine for a path that `write` returned."""
        return self._files[path]

    def close(self) -> None:
        """Write the manifest; without it, a directory is not a bundle."""
        self.manifest.redacted = dict(sorted(self.redacted.items()))
        manifest = _valid(redact_value(self.manifest.model_dump(mode="json", by_alias=True)))
        try:
            (self.directory / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
            (self.directory / _BEING_WRITTEN).unlink(missing_ok=True)
        except OSError as error:
            raise not_writable(self.directory, error) from error


_DIGEST_LETTERS = 32
_CONTENT = re.compile(rf"raw/([0-9a-f]{{{_DIGEST_LETTERS}}})\.\w{{1,20}}")
"""Matches a file named after the SHA-256 of its content."""
_MOST_GAPS = 20


class Bundle:
    """A bundle on disk, open for reading. Use as a context manager: a packed bundle is unpacked until the exit."""

    def __init__(self, path: Path) -> None:
        self._unpacked: tempfile.TemporaryDirectory[str] | None = None
        self.directory = path
        self._whole: dict[str, bool] = {}
        """For each requested file, whether it is unchanged since the capture."""
        if path.is_file():
            self._unpacked = temporary_directory("bundle")
            self.directory = Path(self._unpacked.name)
        try:
            if self._unpacked:
                unpack(path, self.directory)
            self.manifest = _read_manifest(self.directory, path)
        except BaseException:
            self.close()
            raise

    @cached_property
    def _root(self) -> Path:
        return self.directory.resolve()

    @cached_property
    def by_host(self) -> dict[str, list[JournalEntry]]:
        """The journal of each host."""
        return gathered((entry.host, entry) for entry in self.manifest.journal)

    @cached_property
    def names(self) -> dict[str, str]:
        """Map each name of an answer to the bundle's file with its bytes.

        An answer has its name in the journal and, for a file that was read, also the file's original path.
        """
        entries = [entry for entry in self.manifest.journal if entry.path]
        read = [entry for entry in entries if entry.op in ("look", "read") and not entry.tail]
        read.sort(key=lambda entry: not entry.truncated)
        named = {entry.key: entry.content or entry.path for entry in read}
        named |= {name: entry.content or name for entry in entries if (name := entry.path)}
        return {name: file for name, file in named.items() if name and file}

    def file(self, path: str) -> Path:
        """The path of a raw file, by its name in the journal or its path on the host. Raises UnreadableInput."""
        path = self.names.get(path, path)
        try:
            file = (self.directory / path).resolve()
            inside = file.is_relative_to(self._root)
            # Anything but a regular file (a pipe, a device) could keep the reader waiting forever.
            regular = inside and file.is_file()
        except (OSError, ValueError, RuntimeError) as error:  # NUL in the name, a loop of symbolic links
            raise UnreadableInput(f"the bundle's file {path[:120]!r} cannot be read: {error}") from error
        if not inside:
            raise UnreadableInput(f"the bundle's journal points outside the bundle: {path[:120]!r}")
        if not regular:
            raise UnreadableInput(f"the bundle lacks a file its journal names: {path[:120]!r}")
        if not self._is_whole(path, file):
            raise UnreadableInput(
                f"damaged: the bundle's file {path[:120]!r} has changed since the capture (it was cut, modified or "
                "replaced)"
            )
        return file

    def _is_whole(self, path: str, file: Path) -> bool:
        """Whether a file's content has the digest in its name; True for names without a digest."""
        named = _CONTENT.fullmatch(path)
        if named is None:
            return True
        if path not in self._whole:
            try:
                with file.open("rb") as stream:
                    digest = hashlib.file_digest(stream, "sha256").hexdigest()
            except OSError as error:
                raise UnreadableInput(f"the bundle's file {path[:120]!r} cannot be read: {error}") from error
            self._whole[path] = digest.startswith(named[1])
        return self._whole[path]

    def gaps(self, known: Iterable[Missing] = ()) -> list[Missing]:
        """Files that the journal names but are missing, or were requested and are damaged, except known gaps."""
        told = "\n".join(missing.what for missing in known)
        asked_by = gathered((entry.content or entry.path or "", entry) for entry in self.manifest.journal if entry.path)
        lacking = [file for file in asked_by if self._is_gap(file) and file not in told]
        gaps = [self._gap(file, asked_by[file][0]) for file in lacking]
        if (more := len(gaps) - _MOST_GAPS) > 0:
            rest = Missing(what=f"{more} more files of the bundle", why_it_matters="they are also missing or damaged")
            return [*gaps[:_MOST_GAPS], rest]
        return gaps

    def _is_gap(self, file: str) -> bool:
        try:
            return self._whole.get(file) is False or not (self.directory / file).is_file()
        except (OSError, ValueError):
            return True

    def _gap(self, file: str, entry: JournalEntry) -> Missing:
        how = "damaged (cut, modified or replaced since the capture)" if file in self._whole else "not in the bundle"
        return Missing(
            what=f"{entry.op} {entry.key[:160]}: {how}, {file[:120]}",
            why_it_matters="it was left out; copy the bundle again from its original place",
        )

    def read(self, path: str) -> bytes:
        """The bytes of a raw file; the path is one of the journal's. Raises UnreadableInput."""
        try:
            return self.file(path).read_bytes()
        except OSError as error:
            raise UnreadableInput(f"the bundle's file {path[:120]!r} cannot be read: {error}") from error

    def close(self) -> None:
        """Remove the unpacked files."""
        if self._unpacked:
            self._unpacked.cleanup()

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_bundle(path: Path) -> bool:
    """Whether a path looks like a bundle: a directory with our manifest (or a damaged one), or a packed bundle."""
    if not path.is_dir():
        return path.name.endswith(PACKED_SUFFIX) and begins_as_a_bundle(path)
    return (path / MANIFEST).is_file() and ((path / "raw").is_dir() or _names_our_schema(path / MANIFEST))


def _names_our_schema(manifest: Path) -> bool:
    """Whether a manifest is ours; other programs also keep a manifest.json, such as for checkpoints and data sets."""
    try:
        with manifest.open("rb") as stream:
            return b"ddx.bundle/" in stream.read(200)
    except OSError:
        return False


def _read_manifest(directory: Path, bundle: Path) -> Manifest:
    try:
        return Manifest.model_validate_json((directory / MANIFEST).read_bytes())
    except FileNotFoundError as error:
        raise UnreadableInput(f"{bundle} has no {MANIFEST}: it is not a bundle") from error
    except OSError as error:
        raise UnreadableInput(f"the {MANIFEST} of {bundle} cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["loc"] == ("schema",):
            reason = f"{first['msg'].lower()}: another version of ddx wrote it"
        else:
            reason = first_mistake(error)
        raise UnreadableInput(f"the {MANIFEST} of {bundle} is damaged ({reason[:300]})") from error


def valid_text(text: str) -> str:
    """A text as UTF-8 may hold it: half characters, such as bytes of a file name that are no UTF-8, are spelled out."""
    return text.encode(errors="backslashreplace").decode()


def _valid(value: Any) -> Any:
    """A manifest in which all texts are valid."""
    match value:
        case str():
            return valid_text(value)
        case list():
            return [_valid(item) for item in value]
        case dict():
            return {name: _valid(item) for name, item in value.items()}
    return value


_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def _answer_path(host: str, section: str, call: HostCall, occurrence: int) -> str:
    """A readable, safe and unique file name for an answer."""
    plain = call.key if call.op != "read" else PurePosixPath(call.key).name
    if call.op == "agent":
        asked = json.loads(call.key)
        plain = f"rank{asked['rank']}-{asked['request'].get('op', '')}"
    slug = _UNSAFE.sub("_", plain).strip("_.")[:60]
    mark = f"{zlib.crc32(valid_text(call.key).encode()):08x}"
    name = "-".join(part for part in (call.op, slug, mark, str(occurrence)) if part)
    return f"raw/{safe_name(host)}/{section}/{name}.{call.suffix}"


def safe_name(host: str) -> str:
    """A host name in the form used in the names of its answers."""
    return _UNSAFE.sub("_", host).strip(".") or "unknown"
