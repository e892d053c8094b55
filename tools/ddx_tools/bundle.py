"""A bundle: one incident as a directory (or a `.tar.zst` of it).

    manifest.json                what was asked, when, of whom; what failed and why
    raw/<host>/<section>/<file>  the answers, byte for byte (after secrets were redacted)

Raw is the truth; rows, findings and the diagnosis can be rebuilt from it. The manifest's journal holds one
entry per call to a host, so that a recorded host can give the same answers to the same questions.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import tarfile
import tempfile
import threading
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

import zstandard
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ddx_tools import __version__
from ddx_tools.errors import UnreadableInput, UsageError
from ddx_tools.hosts.base import Call, Reply
from ddx_tools.model import Missing

MANIFEST = "manifest.json"
_PACKED_SUFFIX = ".tar.zst"
_UNPACKED_LIMIT_BYTES = 4 << 30
_UNPACKED_LIMIT_FILES = 200_000


class JournalEntry(BaseModel):
    """One call to a host and where its answer lies."""

    model_config = ConfigDict(extra="forbid")

    host: str
    op: str
    key: str
    occurrence: int
    at: float = Field(description="Wall clock of the capture, seconds since the epoch.")
    path: str | None = Field(None, description="File of the answer, inside the bundle; null for an empty one.")
    rc: int = 0
    truncated: bool = False
    error: str | None = None
    message: str = ""
    help: str = ""


class ProbeRun(BaseModel):
    """One probe as it ran at capture."""

    model_config = ConfigDict(extra="forbid")

    probe: str
    host: str
    args: dict[str, Any]
    status: str
    problems: list[str] = Field(default_factory=list)
    missing: list[Missing] = Field(default_factory=list)


class Manifest(BaseModel):
    """`manifest.json`."""

    model_config = ConfigDict(extra="forbid")

    schema_: Literal["ddx.bundle/1"] = Field("ddx.bundle/1", alias="schema")
    ddx_version: str = __version__
    created: str
    target: list[str] = Field(default_factory=list)
    hosts: list[str] = Field(default_factory=list)
    probes: list[ProbeRun] = Field(default_factory=list)
    journal: list[JournalEntry] = Field(default_factory=list)


class BundleWriter:
    """Writes a bundle while a capture goes on. Safe to use from several threads."""

    def __init__(self, directory: Path, target: list[str], now: dt.datetime | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if any(directory.iterdir()):
            raise UsageError(f"{directory} is not empty", "Name a new directory for the bundle.")
        self.directory = directory
        created = (now or dt.datetime.now(dt.UTC)).isoformat(timespec="seconds")
        self.manifest = Manifest(created=created, target=target)
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str, str], int] = {}

    def write(self, host: str, section: str, call: Call, reply: Reply, at: float) -> str:
        """Keep one answer; returns its path inside the bundle ("" for an answer without bytes)."""
        with self._lock:
            identity = (host, call.op, call.key)
            occurrence = self._seen[identity] = self._seen.get(identity, -1) + 1
            if host not in self.manifest.hosts:
                self.manifest.hosts.append(host)
        path = _answer_path(host, section, call, occurrence) if reply.data else None
        if path:
            file = self.directory / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(reply.data)
        entry = JournalEntry(
            host=host,
            op=call.op,
            key=call.key,
            occurrence=occurrence,
            at=at,
            path=path,
            rc=reply.rc,
            truncated=reply.truncated,
            error=reply.error,
            message=reply.message,
            help=reply.help,
        )
        with self._lock:
            self.manifest.journal.append(entry)
        return path or ""

    def close(self) -> None:
        """Write the manifest; without it a directory is not a bundle."""
        text = self.manifest.model_dump_json(by_alias=True, indent=1)
        (self.directory / MANIFEST).write_text(text, encoding="utf-8")


class Bundle:
    """A bundle on disk, open for reading. Use as a context manager: a packed one is unpacked meanwhile."""

    def __init__(self, path: Path) -> None:
        self._unpacked: tempfile.TemporaryDirectory[str] | None = None
        self.directory = path
        if path.is_file():
            self._unpacked = tempfile.TemporaryDirectory(prefix="ddx-bundle-")
            self.directory = _unpack(path, Path(self._unpacked.name))
        self.manifest = _read_manifest(self.directory)

    def read(self, path: str) -> bytes:
        """The bytes of a raw file; the path is one of the journal's."""
        file = (self.directory / path).resolve()
        if not file.is_relative_to(self.directory.resolve()):
            raise UnreadableInput(f"the bundle's journal points outside the bundle: {path[:120]}")
        try:
            return file.read_bytes()
        except OSError as error:
            raise UnreadableInput(f"the bundle lacks a file its journal names: {path[:120]}") from error

    def close(self) -> None:
        """Remove what was unpacked."""
        if self._unpacked:
            self._unpacked.cleanup()

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_bundle(path: Path) -> bool:
    """Whether a path looks like a bundle (a directory with a manifest, or a packed one)."""
    return (path / MANIFEST).is_file() if path.is_dir() else path.name.endswith(_PACKED_SUFFIX)


def pack(directory: Path, target: Path) -> None:
    """Write a bundle directory as `.tar.zst`."""
    with (
        target.open("wb") as out,
        zstandard.ZstdCompressor(level=6).stream_writer(out) as stream,
        tarfile.open(fileobj=stream, mode="w|") as archive,
    ):
        archive.add(directory, arcname=".", filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _unpack(archive: Path, directory: Path) -> Path:
    """Unpack with limits: regular files inside the directory only, bounded in bytes and number."""
    try:
        with archive.open("rb") as stream, zstandard.ZstdDecompressor().stream_reader(stream) as plain:
            _extract(plain, directory)
    except (tarfile.TarError, zstandard.ZstdError, OSError, EOFError) as error:
        raise UnreadableInput(f"{archive} is not a readable bundle: {error}") from error
    return directory


def _extract(stream: IO[bytes], directory: Path) -> None:
    size = files = 0
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            size += member.size
            files += 1
            if size > _UNPACKED_LIMIT_BYTES or files > _UNPACKED_LIMIT_FILES:
                raise UnreadableInput("the bundle unpacks to more than 4 GiB or 200,000 files; it was not read")
            if member.isfile() or member.isdir():
                archive.extract(member, directory, filter="data")


def _read_manifest(directory: Path) -> Manifest:
    file = directory / MANIFEST
    try:
        return Manifest.model_validate_json(file.read_bytes())
    except FileNotFoundError as error:
        raise UnreadableInput(f"{directory} has no {MANIFEST}: it is not a bundle") from error
    except (ValidationError, ValueError, OSError) as error:
        first = str(error).splitlines()[0]
        raise UnreadableInput(f"{file} is damaged: {first}") from error


_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def _answer_path(host: str, section: str, call: Call, occurrence: int) -> str:
    """A readable, safe and unique file name for an answer."""
    plain = call.key if call.op != "read" else PurePosixPath(call.key).name
    if call.op == "agent":
        asked = json.loads(call.key)
        plain = f"rank{asked['rank']}-{asked['request'].get('op', '')}"
    slug = _UNSAFE.sub("_", plain).strip("_.")[:60]
    mark = f"{zlib.crc32(call.key.encode()):08x}"
    safe_host = _UNSAFE.sub("_", host) or "unknown"
    name = "-".join(part for part in (call.op, slug, mark, str(occurrence)) if part)
    return f"raw/{safe_host}/{section}/{name}.{call.suffix}"
