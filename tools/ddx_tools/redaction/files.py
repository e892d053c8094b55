"""Redacts files: text in any encoding, large files a few megabytes at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from ddx_tools.model.files.kinds import COMPRESSED, HEAD_BYTES, FileKind, begins_as_pickle, kind_of
from ddx_tools.redaction.pickles import copy_redacted_pickle, redact_pickle
from ddx_tools.redaction.text import LEFT_OUT, Counts, redact_bytes, whole_lines

_PACKED = COMPRESSED | {FileKind.TAR, FileKind.ZIP}
_PIECE_BYTES = 4 << 20


class _Readable(Protocol):
    def read(self, count: int, /) -> bytes: ...


def redact_file(data: bytes, counts: Counts | None = None) -> bytes:
    """Redact the content of a file; returns the same bytes if it has no secrets.

    Compressed content is left out, since it was not searched. Intake unpacks archives, and their members come here. Of
    a database, what ddx reads of it is kept.
    """
    if begins_as_pickle(data[:HEAD_BYTES]):
        return redact_pickle(data, counts)
    kind = kind_of(data[:HEAD_BYTES])
    if kind is FileKind.DATABASE:
        from ddx_tools.redaction.databases import redact_database

        return redact_database(data, counts)
    return LEFT_OUT.encode() if kind in _PACKED else redact_bytes(data, counts)


def copy_redacted(source: Path, target: Path, counts: Counts | None = None) -> None:
    """Copy a file with its secrets redacted. Raises OSError."""
    with source.open("rb") as file:
        head = file.read(HEAD_BYTES)
    kind = kind_of(head)
    if kind is FileKind.DATABASE:
        from ddx_tools.redaction.databases import copy_redacted_database

        copy_redacted_database(source, target, counts)
        return
    with source.open("rb") as file, target.open("wb") as kept:
        if begins_as_pickle(head):
            copy_redacted_pickle(source, kept, counts)
        elif kind in _PACKED:
            kept.write(LEFT_OUT.encode())
        else:
            for piece in _pieces(file):
                kept.write(redact_bytes(piece, counts))


def _pieces(stream: _Readable) -> Iterator[bytes]:
    """Yield pieces of whole lines, a few megabytes each; a private key stays in one piece."""
    rest = b""
    while chunk := stream.read(_PIECE_BYTES):
        data = rest + chunk
        end = whole_lines(data, 0, len(data))
        yield data[:end]
        rest = data[end:]
    if rest:
        yield rest
