"""Detects the kind of a file from its first bytes, since names are unreliable."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable
from enum import StrEnum
from typing import Literal

HEAD_BYTES = 1024
"""How many bytes from the start are needed to detect the kind."""

_TAR_MAGIC = slice(257, 262)
_BZIP2 = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")
"""A stream begins with a block or, if empty, with its end marker."""
_NOT_OF_DUMPS = ("/data.pkl", "/constants.pkl", "/byteorder", "/version", ".data/serialization_id", ".npy", ".class")
"""First members of zip archives that other programs write: torch.save, torch.jit, NumPy, Java."""

_NO_PROTOCOL_FROM = 0x08
_NOT_IN_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_MARKED_BYTES = 64
"""Within this many bytes, any pickle has an operand or length that no text contains, even if its header is damaged."""


class FileKind(StrEnum):
    """Kinds of files that may hold a flight record or belong to one."""

    DUMP = "dump"
    HEADER = "header"
    """JSON next to a dump that says which rank it is from."""
    PICKLE = "pickle"
    """A pickle not recognisable as a flight record by its first bytes: damaged, or from another program."""
    EMPTY = "empty"
    GZIP = "gzip"
    ZSTD = "zstd"
    XZ = "xz"
    BZIP2 = "bzip2"
    TAR = "tar"
    ZIP = "zip"
    PAGE = "page"
    """The debug server's page with all ranks' records."""
    TRACE = "trace"
    """A trace from torch's profiler."""
    DATABASE = "sqlite database"
    """An SQLite database. Its first bytes do not say whether Nsight Systems exported it: `nsight_export` does."""
    SNAPSHOT = "memory snapshot"
    MEMORY = "memory report"
    """A report written by `ddx_tools.payloads.memory_report`."""
    CORE = "core file"
    """The memory of a process that crashed, in ELF's form: large, and full of secrets."""
    TABLE = "table"
    """The debug server's analysis of records, which contains none itself."""


COMPRESSED = frozenset({FileKind.GZIP, FileKind.ZSTD, FileKind.XZ, FileKind.BZIP2})
ARCHIVES = frozenset({FileKind.TAR, FileKind.ZIP, FileKind.PAGE})


def kind_of(head: bytes) -> FileKind | None:
    """Detect the kind of a file from its first bytes (`HEAD_BYTES` suffice); None for anything else."""
    if not head:
        return FileKind.EMPTY
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return None if _first_of_zip(head).endswith(_NOT_OF_DUMPS) else FileKind.ZIP
    return next((kind for kind, is_one in _SIGNS if is_one(head)), None)


def _is_zstd(head: bytes) -> bool:
    """Whether bytes start a Zstandard file (RFC 8878): a frame, or a skippable frame (0x184D2A50 to 5F) before it."""
    return head.startswith(b"\x28\xb5\x2f\xfd") or (head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50)


def _is_trace(head: bytes) -> bool:
    """Whether it is a profiler's trace, and not one that ddx made from something else."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] == b"{":
        kineto = b'"schemaVersion"' in start and b'"deviceProperties"' in start
        return kineto or (b'"traceEvents"' in start and b'"made_by"' not in start)
    return start[:1] == b"[" and b'"ph"' in start and b'"ts"' in start


def _first_of_zip(head: bytes) -> str:
    """The name of a zip archive's first member, from its local header (APPNOTE.TXT 4.3.7)."""
    return head[30 : 30 + int.from_bytes(head[26:28], "little")].decode("utf-8", "replace")


def _is_tar(head: bytes) -> bool:
    if head[_TAR_MAGIC] == b"ustar":
        return True
    if len(head) < tarfile.BLOCKSIZE:
        return False
    try:  # before POSIX, archives had no magic number, but always a checksum
        tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def begins_as_pickle(head: bytes) -> bool:
    """Whether a file starts like a pickle of protocol 2 or later, even a damaged one.

    A text starts with the same byte if a multi-byte character such as `─` or `€` was cut.
    """
    if head[:1] != b"\x80":
        return False
    return len(head) == 1 or head[1] < _NO_PROTOCOL_FROM or bool(_NOT_IN_TEXT.search(head, 1, _MARKED_BYTES))


def looks_like_dump(head: bytes) -> bool:
    """Whether a file may be a flight record, judged by its first bytes (1 KiB suffices)."""
    if begins_as_pickle(head):
        return b"version" in head[:1024] or b"pg_config" in head[:1024] or b"entries" in head[:1024]
    beginning = head.lstrip()
    if b'"communicators' in beginning[:1024]:  # what `ncclras` prints
        return False
    keys = (b'"pg_config"', b'"pg_status"', b'"entries"', b'"comm_lib_version"', b'"nccl_version"')
    # NCCL's RAS reports also begin with the NCCL version.
    is_ras = b'"communicators' in beginning[:1024]
    return beginning[:1] == b"{" and not is_ras and any(key in beginning[:1024] for key in keys)


_ELF, _ET_CORE, _E_TYPE = b"\x7fELF", 4, slice(16, 18)


def is_core(head: bytes) -> bool:
    """Whether a file starts like a core in ELF's form (elf(5)): `e_type` at byte 16, in the byte order of byte 5."""
    order: Literal["little", "big"] = "big" if head[5:6] == b"\x02" else "little"
    return head.startswith(_ELF) and head[_E_TYPE] == _ET_CORE.to_bytes(2, order)


_TITLE = re.compile(rb"<title>[^<]{0,40}FlightRecorder[^<]{0,40}PyTorch Distributed</title>")


_TABLES = re.compile(rb"^=== (?:TorchComms )?FR Trace ===$", re.MULTILINE)


def is_page(head: bytes) -> bool:
    """Whether a file starts like a debug-server page with records, or with tables made from them."""
    return _TITLE.search(head) is not None


def is_table(head: bytes) -> bool:
    """Whether a file is one of the periodic dumper's tables."""
    return _TABLES.search(head) is not None


_SIGNS: tuple[tuple[FileKind, Callable[[bytes], object]], ...] = (
    (FileKind.GZIP, lambda head: head.startswith(b"\x1f\x8b\x08")),
    (FileKind.ZSTD, _is_zstd),
    (FileKind.XZ, lambda head: head.startswith(b"\xfd7zXZ\0")),
    (FileKind.BZIP2, _BZIP2.match),
    (FileKind.CORE, is_core),
    (FileKind.HEADER, lambda head: head.lstrip()[:1] == b"{" and b'"rank"' in head and b'"taken_at_ns"' in head),
    (FileKind.TRACE, _is_trace),
    (FileKind.DATABASE, lambda head: head.startswith(b"SQLite format 3\0")),
    # A dictionary whose first key is `segments`.
    (FileKind.SNAPSHOT, lambda head: begins_as_pickle(head) and b"segments" in head[:64]),
    (FileKind.MEMORY, lambda head: head.startswith(b'{"ddx_memory_report":')),
    (FileKind.DUMP, looks_like_dump),
    (FileKind.PICKLE, begins_as_pickle),
    (FileKind.TAR, _is_tar),
    (FileKind.PAGE, is_page),
    (FileKind.TABLE, is_table),
)
"""Tests on the start of a file, per kind; the first match counts."""
