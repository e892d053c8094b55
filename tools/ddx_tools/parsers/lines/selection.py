"""Selects the lines of a log that can matter, in blocks of megabytes, so that few lines are read one by one.

A line matters if it can wake one of the readers (`ddx_tools.probes.job_log.scan`) or reports progress
(`ddx_tools.parsers.lines.line_shapes`). An awake reader then takes all following lines.

Endless repetition is read only at its beginning and end in each block: `Allowance` bounds the time.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import TYPE_CHECKING

from ddx_tools.model.files.log_text import TextBlock
from ddx_tools.parsers.lines.line_shapes import CountedTemplates, Matters, lines_that_matter, templates_of_pieces
from ddx_tools.parsers.logs.wrapped_lines import BREAK, whole_lines
from ddx_tools.redaction.text import redact_lines

if TYPE_CHECKING:
    import pyarrow as pa

_OURS = b"ddx: "
"""The prefix of what `ddx run` prints between the lines of the job."""
_SMALL_BYTES = 8_000
"""In a block this small, each line is read: analysing them together, with the imports that needs, costs more."""
_ALL_READ = 4_000
"""Up to this many waking lines of a block are all read, while the log has few such blocks."""
_FEW_READ = 400
_AMPLE = 20_000
_MOST_WAKING = 200_000
"""The maximum number of different waking lines read from a log; each takes about 50 µs."""
_FOLLOWED = 400
"""How many lines are read after a line if others are left out, for example a traceback."""
_PRECEDING = 40
"""How many waking lines are read before a line of a new shape: the traceback that it ends."""
_MOST_PROGRESS = 20_000
_PROGRESS_READ = 256


@dataclass
class Allowance:
    """How many lines of a log may still be read one by one, and how many were left out."""

    waking: int = 0
    """The number of waking lines read."""
    progress: int = 0
    left_out: int = 0
    """The number of unread lines that could have woken a reader. Similar lines before and after them were read."""
    kinds: set[bytes] = field(default_factory=set)
    """The kinds of progress read in earlier blocks."""
    shapes: set[int] = field(default_factory=set)
    """Hashes of the shapes of waking lines in earlier blocks."""

    @property
    def is_spent(self) -> bool:
        """Whether the budget for reading a log's waking lines one by one is used up.

        Waking lines are those that may start a message.
        """
        return self.waking >= _MOST_WAKING

    def of_waking(self, count: int, distinct: int) -> int:
        """Return how many of a block's waking lines (which may start a message) to read.

        `count` is how many the block has; `distinct` is how many of these differ.
        """
        least = _ALL_READ if self.waking < _AMPLE else _FEW_READ
        return min(count, max(least, min(distinct, _MOST_WAKING - self.waking)))

    def of_progress(self) -> int:
        """Return how many first and how many last lines of progress kinds to read in a block.

        It shrinks with what was read before, down to a minimum. The last block of a log has no such limit.
        """
        return max(_PROGRESS_READ, _MOST_PROGRESS - self.progress)


class LineSelection:
    """The lines of one block, and the places of those that matter. A place is the index of a piece between line
    ends."""

    def __init__(self, block: TextBlock) -> None:
        self.block = block = whole_lines(block)
        size = len(block.data) - (block.data[-1:] in (b"\n", b"\r"))
        self._pieces: list[bytes] | pa.BinaryArray
        self._begins: Sequence[int]
        """For each piece, the number of bytes of other pieces before it."""
        self._line_of: Sequence[int] | None = None
        """For each piece, its line in the block, if carriage returns split lines."""
        self._matters: Matters | None = None
        if size < _SMALL_BYTES:
            self._split(block.data[:size])
        else:
            self._split_together(block, size)
            self._matters = lines_that_matter(self._pieces, is_first=block.offset == 0)
        self._has_breaks = BREAK in block.data
        self._places: Sequence[int] = range(len(self._pieces))
        self._gap = range(0)
        """The places between which not all waking lines are read."""

    def _split(self, data: bytes) -> None:
        parted = [line.split(b"\r") for line in data.split(b"\n")]
        self._pieces = [piece for pieces in parted for piece in pieces]
        self._begins = list(accumulate(map(len, self._pieces), initial=0))
        if b"\r" in data:
            self._line_of = [number for number, pieces in enumerate(parted) for _ in pieces]

    def _split_together(self, block: TextBlock, size: int) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        whole = [None, pa.py_buffer(struct.pack("=ii", 0, size)), pa.py_buffer(block.data)]
        self._pieces = pc.split_pattern(pa.Array.from_buffers(pa.binary(), 1, whole), "\n").values
        if b"\r" in block.data:
            pieces = pc.split_pattern(self._pieces, "\r")
            self._pieces = pieces.values
            self._line_of = memoryview(pc.list_parent_indices(pieces).buffers()[1]).cast("q")
        self._begins = memoryview(self._pieces.buffers()[1]).cast("i")

    def __len__(self) -> int:
        return len(self._pieces)

    @property
    def templates(self) -> CountedTemplates:
        """The templates of its lines."""
        if self._matters is not None:
            return self._matters.templates
        return templates_of_pieces([bytes(piece) for piece in self._pieces])

    def line(self, place: int, most_bytes: int) -> tuple[int, bytes]:
        """Return the line number and the bytes, cut to `most_bytes`, of the piece at an index.

        `place` counts pieces between line ends and carriage returns. The bytes are not redacted.
        """
        piece = self._pieces[place]
        text = piece if isinstance(piece, bytes) else piece.as_py()
        return self._number(place, self._begins[place] + place), text[:most_bytes].rstrip(BREAK)

    @property
    def kinds(self) -> set[bytes]:
        """The kinds of progress in its lines, by kind and process."""
        return {end.kind for end in self._matters.ends} if self._matters else set()

    def choose(self, allowance: Allowance, following: set[bytes]) -> None:
        """Choose which lines of this block to read one by one.

        `allowance` is the budget of the whole log, and is updated. `following` holds the kinds of progress lines in the
        next block, whose last line here need not be read.
        """
        matters = self._matters
        if matters is None:
            return
        places = set(matters.samples)
        firsts = [end.first for end in matters.ends if end.kind not in allowance.kinds]
        lasts = [end.last for end in matters.ends if end.kind not in following]
        most = len(matters.ends) if not following else allowance.of_progress()
        ends = {*firsts[:most], *lasts[:most]}
        allowance.progress += len(ends)
        if len(allowance.kinds) < _MOST_PROGRESS:
            allowance.kinds.update(end.kind for end in matters.ends)
        places |= ends
        for end, before in matters.before.items():
            places.update(before if end in ends else ())
        places.update(self._waking_places(matters, allowance))
        self._places = sorted(places)

    def _waking_places(self, matters: Matters, allowance: Allowance) -> Sequence[int]:
        """The places of all waking lines; of too many, the first, the last, and those of new shapes."""
        waking = matters.waking
        most = allowance.of_waking(len(waking), matters.distinct)
        new = [place for shape, place in matters.shapes if shape not in allowance.shapes]
        if len(allowance.shapes) < _MOST_WAKING:
            allowance.shapes.update(shape for shape, _ in matters.shapes)
        allowance.waking += most
        allowance.left_out += len(waking) - most
        if most == len(waking):
            return waking
        head, tail = waking[: most // 2], waking[len(waking) - most // 2 :]
        self._gap = range(head[-1], tail[0])
        around = [waking[max(0, at - _PRECEDING) : at + 1] for at in (bisect_left(waking, p) for p in new[: most // 4])]
        return [*head, *tail, *chain.from_iterable(around)]

    def next_place(self, place: int) -> int | None:
        """Return the index of the first chosen piece at or after `place`; None if there is none.

        Pieces are the parts of the block between line ends.
        """
        at = bisect_left(self._places, place)
        return self._places[at] if at < len(self._places) else None

    def goes_on_at(self, place: int) -> int | None:
        """Return the index of the piece to jump to, if the reader is far into a skipped part.

        `place` is the index of the current piece. None means to go on with the next one.
        """
        if place not in self._gap:
            return None
        at = bisect_right(self._places, place)
        return self._places[at] if place - self._places[at - 1] > _FOLLOWED else None

    def skips_progress(self, start: int, end: int | None) -> bool:
        """Return whether lines between two places report progress."""
        progress: Sequence[int] = self._matters.progress if self._matters else ()
        at = bisect_left(progress, start)
        return at < len(progress) and (end is None or progress[at] < end)

    def pieces(self, place: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield (place, line number, bytes) of each piece from a place on, redacted and without empty ones."""
        size = 1  # usually only one is wanted; more while a reader is awake
        while place < len(self._pieces):
            some = self._pieces[place : place + size]
            for piece in redact_lines(some if isinstance(some, list) else some.to_pylist()):
                begin = self._begins[place] + place
                if piece or not self._overwritten(begin):
                    # ddx's own output there is an answer, not evidence for the next one.
                    said = b"" if piece.startswith(_OURS) else piece.rstrip(BREAK)
                    yield place, self._number(place, begin), said
                place += 1
            size = 64

    def _overwritten(self, at: int) -> bool:
        """Whether an empty piece is next to a carriage return."""
        return b"\r" in self.block.data[max(0, at - 1) : at + 1]

    def _number(self, place: int, begin: int) -> int:
        breaks = self.block.data.count(BREAK, 0, begin) if self._has_breaks else 0
        return self.block.number + (place if self._line_of is None else self._line_of[place]) + breaks
