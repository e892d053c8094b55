"""Which lines of a log can matter: found in blocks of megabytes, so that hardly any line is looked at by itself.

A line matters if it can wake one of the readers (`ddx_tools.logs.scan`) or tells of progress
(`ddx_tools.logs.line_shapes`). A reader that is awake then takes the lines behind it as they come.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ddx_tools.formats.log_text import Block
from ddx_tools.formats.wrapped_lines import BREAK
from ddx_tools.logs.line_shapes import places_that_matter

if TYPE_CHECKING:
    import pyarrow as pa

_SMALL_BYTES = 8_000
"""Of so few lines each is read: compiling the expressions, and importing pyarrow, costs more."""
_AHEAD = 2
_THREADS = 2


class Selection:
    """The lines of one block, and the places of those that matter."""

    def __init__(self, block: Block) -> None:
        self._block = block
        data = block.data[:-1] if block.data[-1:] in (b"\n", b"\r") else block.data
        self._uncounted = [(mark, sign) for mark, sign in ((b"\r", -1), (BREAK, 1)) if mark in data]
        """What parts pieces but not lines, and lines but not pieces."""
        self._counted = (0, 0)
        """(byte, how many lines more than pieces begin up to there), of the last piece that was asked for."""
        self._pieces: list[bytes] | pa.BinaryArray
        self._ends: list[int] | pa.Int64Array
        text = data.replace(b"\r", b"\n")
        if len(data) < _SMALL_BYTES:
            self._pieces = text.split(b"\n")
            self._ends = list(accumulate(map(len, self._pieces)))
            self._places: Sequence[int] = range(len(self._pieces))
            self._progress: Sequence[int] = ()
        else:
            import pyarrow as pa
            import pyarrow.compute as pc

            self._pieces = pc.split_pattern(pa.array([text], pa.binary()), "\n").values
            self._ends = pc.cumulative_sum(pc.binary_length(self._pieces))
            self._places, self._progress = places_that_matter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)

    def next_place(self, place: int) -> int | None:
        """The first piece that matters, at this place or behind it."""
        at = bisect_left(self._places, place)
        return self._places[at] if at < len(self._places) else None

    def leaves_out(self, start: int, end: int | None) -> bool:
        """Whether lines between two places tell of progress."""
        at = bisect_left(self._progress, start)
        return at < len(self._progress) and (end is None or self._progress[at] < end)

    def pieces(self, place: int) -> Iterator[tuple[int, int, bytes]]:
        """(place, number of the line, bytes) of each piece from a place on, without empty ones beside a return."""
        size = 1  # mostly only one is wanted; then more, while a reader is awake
        while place < len(self._pieces):
            some = self._pieces[place : place + size]
            for piece in some if isinstance(some, list) else some.to_pylist():
                begin = (int(self._ends[place - 1]) if place else 0) + place
                if piece or not self._overwritten(begin):
                    yield place, self._number(place, begin), piece.rstrip(BREAK)
                place += 1
            size = 64

    def _overwritten(self, at: int) -> bool:
        """Of an empty piece: whether a carriage return stands on one side of it."""
        return b"\r" in self._block.data[max(0, at - 1) : at + 1]

    def _number(self, place: int, begin: int) -> int:
        seen, more = self._counted
        if begin < seen:
            seen, more = 0, 0
        more += sum(sign * self._block.data.count(mark, seen, begin) for mark, sign in self._uncounted)
        self._counted = (begin, more)
        return self._block.number + place + more


def select(blocks: Iterable[Block]) -> Iterator[Selection]:
    """What matters in each block, in order; a few blocks ahead, in threads of their own."""
    pending: deque[Any] = deque()
    with ThreadPoolExecutor(_THREADS) as threads:
        for block in blocks:
            is_small = len(block.data) < _SMALL_BYTES
            while len(pending) > (0 if is_small else _AHEAD):
                yield pending.popleft().result()
            if is_small:
                yield Selection(block)
            else:
                pending.append(threads.submit(Selection, block))
        while pending:
            yield pending.popleft().result()
