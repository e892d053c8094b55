"""Archives of real flight records, made as users make them."""

from __future__ import annotations

import gzip
import io
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

from ddx_tools.model.files.kinds import HEAD_BYTES, FileKind, kind_of
from ddx_tools.parsers.flight_records.fr_pickle import MAX_BYTES
from ddx_tools.probes.flight_recorder.material import record_rows
from ddx_tools.probes.flight_recorder.probe import PROBE, FlightRecorderArgs
from ddx_tools.sources.archives import UnpackBudget, Unpacking
from ddx_tools.sources.host import Host
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.raw import Raw

RECORDS = Path(__file__).parents[1] / "fixtures" / "flight_records"
CASE = RECORDS / "no_sync-fault"
DUMPS = {f"rank_{rank}.pkl": (CASE / f"rank_{rank}.pkl").read_bytes() for rank in range(4)}
HEADERS = {f"rank_{rank}.header.json": (CASE / f"rank_{rank}.header.json").read_bytes() for rank in range(4)}
"""They come behind the dumps in an archive: whoever reads it once, in order, knows no header when a dump comes by."""

Files = Mapping[str, bytes]


def tar(files: Files, *others: tarfile.TarInfo, format: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
        for other in others:
            archive.addfile(other)
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def open_end(archive: bytes) -> bytes:
    """A tar archive without the zeros that end it."""
    return archive[: -(-len(archive.rstrip(b"\0")) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE]


def gz(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=6, write_checksum=True).compress(data)  # as the program zstd does


def tar_gz(files: Files) -> bytes:
    return gz(tar(files))


def tar_zst(files: Files) -> bytes:
    return zst(tar(files))


def zipped(files: Files, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


PACKERS: dict[str, Callable[[Files], bytes]] = {
    "dumps.tar": tar,
    "dumps.tar.gz": tar_gz,
    "dumps.tgz": tar_gz,
    "dumps.tar.zst": tar_zst,
    "dumps.zip": zipped,
}

ALL_KINDS = frozenset({FileKind.DUMP, FileKind.HEADER, FileKind.PICKLE, FileKind.EMPTY})


class Opened(NamedTuple):
    """A member of an archive, with its bytes."""

    path: str
    kind: FileKind
    data: bytes
    facts: Mapping[str, Any]


def opened(data: bytes, **limits: int) -> tuple[list[Opened], list[str]]:
    """The records in an archive, and what is said of the rest."""
    with tempfile.TemporaryDirectory() as directory:
        archive, scratch = Path(directory) / "dumps", Path(directory) / "scratch"
        archive.write_bytes(data)
        scratch.mkdir()
        way = Unpacking(scratch, UnpackBudget(len(data), **{"member_bytes": MAX_BYTES, **limits}))
        members = []
        for member in way.members("dumps", archive):
            content = member.file.read_bytes()
            kind = kind_of(content[:HEAD_BYTES])
            if kind in ALL_KINDS:
                members.append(Opened(member.path, kind, content, member.facts))
        return members, list(way.problems)


def captured(*targets: Path, host: Host | None = None, **args: Any) -> Raw:
    arguments = FlightRecorderArgs(target=[str(target) for target in targets], **args)
    return PROBE.capture(host or LocalHost("node"), arguments)


def rows_of(raw: Raw) -> dict[str, list[dict[str, Any]]]:
    """The rows of a capture by table. What could not be read stands in `raw.problems` afterwards."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for table, batch in record_rows(raw):
        rows.setdefault(table, []).extend(batch.to_pylist())
    return rows


def ranks_of(raw: Raw) -> list[int | None]:
    return sorted((dump["rank"] for dump in rows_of(raw).get("fr_dumps", [])), key=lambda rank: (rank is None, rank))
