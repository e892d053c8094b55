"""Makes one pass over the bytes of a log for all its consumers.

The log comes in blocks of whole lines. Work that needs only one block runs in threads, a few blocks ahead (Arrow and
RE2 release the GIL); work that depends on the order of lines follows block by block. So memory is that of a few blocks,
however long the log is, and every byte is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from ddx_tools.model.errors import UnreadableInput
from ddx_tools.model.files.log_text import BLOCK_BYTES, Readable, TextBlock, read_blocks

_THREADS = 2
_AHEAD = 2
_SMALL_BYTES = 64 << 10
"""Smaller blocks are not worth a thread."""


class Consumer(Protocol):
    """The interface of a log's reader."""

    @property
    def look(self) -> Callable[[TextBlock], Any]:
        """The function that analyses a single block, called once for all consumers that share it. Runs in threads."""

    def take(self, block: TextBlock, seen: Any) -> None:
        """Take the next block, with the result of `look` for it."""


@dataclass(frozen=True)
class LinesRead:
    """The result of reading a log: how far it was read."""

    ends_within_line: bool
    """Whether its last line has no line end: more may still be in the writer's buffer."""
    problem: str | None
    """Why the rest could not be read; None if all of it was."""


def read_lines(stream: Readable, consumers: Sequence[Consumer], block_bytes: int = BLOCK_BYTES) -> LinesRead:
    """Read the whole log and pass its blocks to the consumers. Accepts any bytes."""
    source = _Source(read_blocks(stream, block_bytes))
    with ThreadPoolExecutor(_THREADS) as threads:
        for block, seen in _looked_at(threads, source.blocks(), consumers):
            for consumer, what in zip(consumers, seen, strict=True):
                consumer.take(block, what)
    last = source.last
    open_end = last is not None and not last.data.endswith(b"\n")
    return LinesRead(open_end, source.problem)


class _Source:
    """Yields blocks as long as they can be read, and keeps the reason if reading fails."""

    def __init__(self, blocks: Iterator[TextBlock]) -> None:
        self._blocks = blocks
        self.last: TextBlock | None = None
        self.problem: str | None = None

    def blocks(self) -> Iterator[TextBlock]:
        try:
            for block in self._blocks:
                self.last = block
                yield block
        except UnreadableInput as error:
            self.problem = error.message


def _looked_at(
    threads: ThreadPoolExecutor, blocks: Iterator[TextBlock], consumers: Sequence[Consumer]
) -> Iterator[tuple[TextBlock, list[Any]]]:
    def look(raw: TextBlock) -> tuple[TextBlock, list[Any]]:
        block = raw.cleaned()
        seen = {look: look(block) for look in {consumer.look for consumer in consumers}}
        return block, [seen[consumer.look] for consumer in consumers]

    pending: deque[Future[tuple[TextBlock, list[Any]]]] = deque()
    for block in blocks:
        is_small = len(block.data) < _SMALL_BYTES
        while len(pending) > (0 if is_small else _AHEAD):
            yield pending.popleft().result()
        if is_small:
            yield look(block)
        else:
            pending.append(threads.submit(look, block))
    while pending:
        yield pending.popleft().result()
