"""Compressed logs: their beginning and their end as text, in bounded memory."""

from __future__ import annotations

import io
from collections import deque
from dataclasses import dataclass

from ddx_tools.errors import UnreadableInput
from ddx_tools.formats.file_kinds import COMPRESSED, HEAD_BYTES, kind_of
from ddx_tools.formats.log_lines import is_text_log
from ddx_tools.formats.unpacking import Budget, UnpackedStream, unpacked

MAX_UNPACKED_BYTES = 1 << 30
"""Unpacking takes 3 s a GiB, and the end of a log cannot be had without all that is before it."""
_RATIO = 1_000
_STEP_BYTES = 1 << 20


@dataclass(frozen=True)
class Part:
    """A stretch of a log."""

    data: bytes
    first_line: int
    """Number of its first line in the whole log, 1-based."""


def is_packed_log(data: bytes) -> bool:
    """Whether bytes begin a compressed file that holds text."""
    stream = opened(data)
    if stream is None:
        return False
    try:
        return is_text_log(stream.read(8 * HEAD_BYTES))
    except UnreadableInput:
        return False


def head_and_tail(data: bytes, part_bytes: int) -> tuple[list[Part], str | None]:
    """The first and the last bytes of a compressed log, whole if it is no longer than both; and what it lacks."""
    stream = opened(data)
    if stream is None:
        return [], None
    head, tail = bytearray(), deque[bytes]()
    kept = passed_lines = 0
    problem = None
    try:
        while chunk := stream.read(_STEP_BYTES):
            if len(head) < part_bytes:
                head += chunk
                continue
            tail.append(chunk)
            kept += len(chunk)
            while kept - len(tail[0]) >= part_bytes:
                passed = tail.popleft()
                kept -= len(passed)
                passed_lines += passed.count(b"\n")
    except UnreadableInput as error:
        problem = error.message
    rest = b"".join(tail)
    if not passed_lines:
        return [Part(bytes(head) + rest, 1)], problem
    return [Part(bytes(head), 1), Part(rest, 1 + head.count(b"\n") + passed_lines)], problem


def opened(data: bytes) -> UnpackedStream | None:
    """The content of a file in gzip or zstd, within limits; None of any other."""
    kind = kind_of(data[:HEAD_BYTES])
    if kind not in COMPRESSED:
        return None
    return unpacked(io.BytesIO(data), kind, Budget(len(data), MAX_UNPACKED_BYTES, _RATIO, most_members=1))
