"""One pass over the bytes of a log, for everybody who wants something of it.

The log comes in blocks of whole lines. What can be said of a block alone is found in threads, a few blocks ahead (Arrow
and RE2 work outside of Python's lock); what follows from the order of the lines is then told block by block. So memory
is that of a few blocks, however long the log is, and no byte of it is left out.
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
"""A block that is not worth a thread."""


class Consumer(Protocol):
    """Somebody who reads a log."""

    @property
    def look(self) -> Callable[[TextBlock], Any]:
        """Says what can be said of a block alone; once for all consumers that have the same. Runs in threads."""

    def take(self, block: TextBlock, seen: Any) -> None:
        """The blocks in order, each with what `look` said of it."""


@dataclass(frozen=True)
class LinesRead:
    """How far a log was read."""

    ends_within_line: bool
    """Its last line has no end: more of it may still be in the buffer of whoever wrote it."""
    problem: str | None
    """Why the rest of it could not be read."""


def read_lines(stream: Readable, consumers: Sequence[Consumer], block_bytes: int = BLOCK_BYTES) -> LinesRead:
    """Give the whole log to the consumers. Any bytes will do."""
    source = _Source(read_blocks(stream, block_bytes))
    with ThreadPoolExecutor(_THREADS) as threads:
        for block, seen in _looked_at(threads, source.blocks(), consumers):
            for consumer, what in zip(consumers, seen, strict=True):
                consumer.take(block, what)
    last = source.last
    open_end = last is not None and not last.data.endswith(b"\n")
    return LinesRead(open_end, source.problem)


class _Source:
    """Blocks as far as they can be read, and what kept the rest from it."""

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
