"""What a file is, told by its first bytes: names lie, and dumps are given any name."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable
from enum import StrEnum

from ddx_tools.parsers.flight_records.debug_pages import is_page, is_table
from ddx_tools.parsers.flight_records.fr_dump import looks_like_dump
from ddx_tools.parsers.flight_records.fr_pickle import begins_as_pickle

HEAD_BYTES = 1024
"""As many bytes of the beginning decide."""

_TAR_MAGIC = slice(257, 262)
_BZIP2 = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")
"""A stream begins with a block or, if it is empty, with its end."""
_NOT_OF_DUMPS = ("/data.pkl", "/constants.pkl", "/byteorder", "/version", ".data/serialization_id", ".npy", ".class")
"""First members of the zip archives of other programs: torch.save, torch.jit, NumPy, Java."""


class Kind(StrEnum):
    """What may hold a flight record, or say something about one."""

    DUMP = "dump"
    HEADER = "header"
    """JSON beside a dump that says whose it is."""
    PICKLE = "pickle"
    """A pickle whose first bytes do not say that it is a flight record: a damaged one, or another program's."""
    EMPTY = "empty"
    GZIP = "gzip"
    ZSTD = "zstd"
    XZ = "xz"
    BZIP2 = "bzip2"
    TAR = "tar"
    ZIP = "zip"
    PAGE = "page"
    """The debug server's page of all ranks' records."""
    TRACE = "trace"
    """A trace of torch's profiler."""
    SNAPSHOT = "memory snapshot"
    MEMORY = "memory report"
    """What `ddx_tools.payloads.memory_report` wrote."""
    TABLE = "table"
    """Its analysis of them, which holds no records."""


COMPRESSED = frozenset({Kind.GZIP, Kind.ZSTD, Kind.XZ, Kind.BZIP2})
ARCHIVES = frozenset({Kind.TAR, Kind.ZIP, Kind.PAGE})


def kind_of(head: bytes) -> Kind | None:
    """The kind of a file that begins with these bytes (`HEAD_BYTES` of them do); None for anything else."""
    if not head:
        return Kind.EMPTY
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return None if _first_of_zip(head).endswith(_NOT_OF_DUMPS) else Kind.ZIP
    return next((kind for kind, is_one in _SIGNS if is_one(head)), None)


def _is_zstd(head: bytes) -> bool:
    """RFC 8878: a frame, or a skippable frame (0x184D2A50 to 5F) before the first one."""
    return head.startswith(b"\x28\xb5\x2f\xfd") or (head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50)


def _is_trace(head: bytes) -> bool:
    """A profiler's trace, and none that ddx made of something else."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] == b"{":
        kineto = b'"schemaVersion"' in start and b'"deviceProperties"' in start
        return kineto or (b'"traceEvents"' in start and b'"made_by"' not in start)
    return start[:1] == b"[" and b'"ph"' in start and b'"ts"' in start


def _first_of_zip(head: bytes) -> str:
    """The name of the first member, as its local header gives it (APPNOTE.TXT 4.3.7)."""
    return head[30 : 30 + int.from_bytes(head[26:28], "little")].decode("utf-8", "replace")


def _is_tar(head: bytes) -> bool:
    if head[_TAR_MAGIC] == b"ustar":
        return True
    if len(head) < tarfile.BLOCKSIZE:
        return False
    try:  # before POSIX there was no magic, but always a checksum
        tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


_SIGNS: tuple[tuple[Kind, Callable[[bytes], object]], ...] = (
    (Kind.GZIP, lambda head: head.startswith(b"\x1f\x8b\x08")),
    (Kind.ZSTD, _is_zstd),
    (Kind.XZ, lambda head: head.startswith(b"\xfd7zXZ\0")),
    (Kind.BZIP2, _BZIP2.match),
    (Kind.HEADER, lambda head: head.lstrip()[:1] == b"{" and b'"rank"' in head and b'"taken_at_ns"' in head),
    (Kind.TRACE, _is_trace),
    # A dictionary whose first key is `segments`.
    (Kind.SNAPSHOT, lambda head: begins_as_pickle(head) and b"segments" in head[:64]),
    (Kind.MEMORY, lambda head: head.startswith(b'{"ddx_memory_report":')),
    (Kind.DUMP, looks_like_dump),
    (Kind.PICKLE, begins_as_pickle),
    (Kind.TAR, _is_tar),
    (Kind.PAGE, is_page),
    (Kind.TABLE, is_table),
)
"""By what a file of the kind begins with; the first counts."""
