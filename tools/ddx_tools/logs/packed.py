"""Compressed logs."""

from __future__ import annotations

import io

from ddx_tools.errors import UnreadableInput
from ddx_tools.formats.file_kinds import COMPRESSED, HEAD_BYTES, kind_of
from ddx_tools.formats.log_lines import is_text_log
from ddx_tools.formats.unpacking import Budget, UnpackedStream, unpacked

MAX_UNPACKED_BYTES = 1 << 30
_RATIO = 1_000


def is_packed_log(data: bytes) -> bool:
    """Whether bytes begin a compressed file that holds text."""
    stream = opened(data)
    if stream is None:
        return False
    try:
        return is_text_log(stream.read(8 * HEAD_BYTES))
    except UnreadableInput:
        return False


def opened(data: bytes) -> UnpackedStream | None:
    """The content of a file in gzip or zstd, within limits; None of any other."""
    kind = kind_of(data[:HEAD_BYTES])
    if kind not in COMPRESSED:
        return None
    return unpacked(io.BytesIO(data), kind, Budget(len(data), MAX_UNPACKED_BYTES, _RATIO, most_members=1))
