"""Which parts of many large logs are read, and their blocks, in order, by as many threads as there are CPUs.

The beginning of a log holds how the job formed, its end where it hangs: where there is too much to read all of it,
the middle is left out. Arrow does the work on a block outside of Python's lock, so threads are enough.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ddx_tools.flight_records.workers import worker_count
from ddx_tools.formats.nccl_blocks import Block, read_block
from ddx_tools.nccl.streams import Stream, streams_of

BLOCK_BYTES = 4 << 20
MOST_BYTES = 256 << 20
"""So much is read of all logs together: a few seconds."""
_HEAD_BYTES = 16 << 20
_LEAST_TAIL_BYTES = 1 << 20
_LONGEST_LINE = 64 << 10


@dataclass(frozen=True)
class Part:
    """A stretch of a log: bytes `start` to `end` of a file, or bytes that were brought along."""

    source: str
    file: str | None
    data: bytes
    start: int
    end: int
    at_start: bool = True
    """The log begins here: lines can be numbered."""
    rank_label: int | None = None
    """What the file's name says."""


@dataclass(frozen=True)
class Piece:
    """A block of a part that was read."""

    part: Part
    start: int
    """Offset of the block in the file."""
    first_line: int | None
    """1-based number of its first line."""
    block: Block
    streams: list[Stream]


def stretches(sizes: list[int], most_bytes: int) -> list[list[tuple[int, int]]]:
    """For files of some sizes, what to read of each: all, or its head and its tail, as (start, end)."""
    if sum(sizes) <= most_bytes:
        return [[(0, size)] for size in sizes]
    # Small files leave their share to the large ones.
    left, share = most_bytes, 0
    for done, size in enumerate(sorted(sizes)):
        share = max(left // (len(sizes) - done), 2 * _LEAST_TAIL_BYTES)
        if size > share:
            break
        left -= size
    head = min(_HEAD_BYTES, share // 4)
    return [[(0, size)] if size <= share else [(0, head), (size - (share - head), size)] for size in sizes]


def read_parts(parts: Iterable[Part]) -> Iterator[Piece]:
    """All blocks of all parts, in order. What became shorter meanwhile ends early."""
    count = worker_count()
    line: int | None = None
    with ThreadPoolExecutor(count) as threads:
        for part, start, result in _ahead(threads, parts, 2 * count):
            if start == part.start:
                line = 1 if part.at_start else None
            block, streams = result.result()
            yield Piece(part, start, line, block, streams)
            line = None if line is None else line + block.lines


def _ahead(
    threads: ThreadPoolExecutor, parts: Iterable[Part], most: int
) -> Iterator[tuple[Part, int, Future[tuple[Block, list[Stream]]]]]:
    """Blocks being read, with few of them waiting."""
    pending: deque[tuple[Part, int, Future[tuple[Block, list[Stream]]]]] = deque()
    for part in parts:
        for start in range(part.start, part.end, BLOCK_BYTES):
            pending.append((part, start, threads.submit(_read, part, start)))
            if len(pending) > most:
                yield pending.popleft()
    yield from pending


def _read(part: Part, start: int) -> tuple[Block, list[Stream]]:
    block = read_block(block_at(part, start))
    return block, streams_of(block)


def block_at(part: Part, start: int) -> bytes:
    """The lines that begin within one block of a part."""
    with _opened(part) as stream:
        end = min(start + BLOCK_BYTES, part.end)
        # A line belongs to the block that it begins in; one byte before tells whether a line begins at `start`.
        if start > 0:
            stream.seek(start - 1)
            _skip_line(stream, end)
        data = stream.read(max(0, end - stream.tell()))
        if data and not data.endswith(b"\n"):
            data += stream.readline(_LONGEST_LINE)
        return data


def _skip_line(stream: BinaryIO, end: int) -> None:
    while stream.tell() < end:
        if stream.readline(_LONGEST_LINE).endswith(b"\n"):
            return


def ends_within_line(part: Part) -> bool:
    """Whether the last line of a part has no end."""
    with _opened(part) as stream:
        stream.seek(max(0, part.end - 1))
        return stream.read(1) not in (b"\n", b"")


def _opened(part: Part) -> BinaryIO:
    return io.BytesIO(part.data) if part.file is None else Path(part.file).open("rb")
