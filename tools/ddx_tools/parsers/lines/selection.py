"""Which lines of a log can matter: found in blocks of megabytes, so that hardly any line is looked at by itself.

A line matters if it can wake one of the readers (`ddx_tools.probes.job_log.scan`) or reports progress
(`ddx_tools.parsers.lines.line_shapes`). A reader that is awake then takes the lines behind it as they come.

What a log repeats without end is read where it begins and where it ends, in each block: `Allowance` bounds the time.
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
"""Begins what `ddx run` prints between the lines of the job."""
_SMALL_BYTES = 8_000
"""Of so few lines each is read: looking at them together, and importing what does, costs more."""
_ALL_READ = 4_000
"""Of so many lines that wake readers each is read, while the log has few such blocks."""
_FEW_READ = 400
_AMPLE = 20_000
_MOST_WAKING = 200_000
"""So many lines that wake readers are read of a log, if they are not alike; each takes some 50 µs."""
_FOLLOWED = 400
"""What follows on a line where others are left out: a traceback, say."""
_PRECEDING = 40
"""So many waking lines before one of a shape that is new: the traceback that it ends."""
_MOST_PROGRESS = 20_000
_PROGRESS_READ = 256


@dataclass
class Allowance:
    """How many lines of a log may still be looked at one by one, and how many were left out for that."""

    waking: int = 0
    """Lines read that wake readers."""
    progress: int = 0
    left_out: int = 0
    """Lines that could have woken a reader. Their like was read before and behind them."""
    kinds: set[bytes] = field(default_factory=set)
    """What reports progress, as far as it was read in blocks before."""
    shapes: set[int] = field(default_factory=set)
    """Hashes of the shapes of waking lines in blocks before."""

    @property
    def is_spent(self) -> bool:
        """So much was read that nobody is waited for any more."""
        return self.waking >= _MOST_WAKING

    def of_waking(self, count: int, distinct: int) -> int:
        """How many of the waking lines of a block to read."""
        least = _ALL_READ if self.waking < _AMPLE else _FEW_READ
        return min(count, max(least, min(distinct, _MOST_WAKING - self.waking)))

    def of_progress(self) -> int:
        """How many of the ends of kinds of progress to read in a block that is not the last."""
        return max(_PROGRESS_READ, _MOST_PROGRESS - self.progress)


class LineSelection:
    """The lines of one block, and the places of those that matter. A place counts pieces between line ends."""

    def __init__(self, block: TextBlock) -> None:
        self.block = block = whole_lines(block)
        size = len(block.data) - (block.data[-1:] in (b"\n", b"\r"))
        self._pieces: list[bytes] | pa.BinaryArray
        self._begins: Sequence[int]
        """Of each piece, how many bytes of other pieces stand before it."""
        self._line_of: Sequence[int] | None = None
        """Of each piece, where a carriage return parts lines: which line of the block it is of."""
        self._matters: Matters | None = None
        if size < _SMALL_BYTES:
            self._split(block.data[:size])
        else:
            self._split_together(block, size)
            self._matters = lines_that_matter(self._pieces, is_first=block.offset == 0)
        self._has_breaks = BREAK in block.data
        self._places: Sequence[int] = range(len(self._pieces))
        self._gap = range(0)
        """Places between which not all waking lines are read."""

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
        """What its lines are made of."""
        if self._matters is not None:
            return self._matters.templates
        return templates_of_pieces([bytes(piece) for piece in self._pieces])

    def line(self, place: int, most_bytes: int) -> tuple[int, bytes]:
        """The number of a line and its bytes as they stand there, not yet freed of secrets."""
        piece = self._pieces[place]
        text = piece if isinstance(piece, bytes) else piece.as_py()
        return self._number(place, self._begins[place] + place), text[:most_bytes].rstrip(BREAK)

    @property
    def kinds(self) -> set[bytes]:
        """What its lines report about progress, by kind and process."""
        return {end.kind for end in self._matters.ends} if self._matters else set()

    def choose(self, allowance: Allowance, following: set[bytes]) -> None:
        """Settle what is read, given what was read before, and of what the next block goes on to tell."""
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
        """All of them; of too many the first, the last, and those of shapes that the log did not hold before."""
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
        """The first piece that matters, at this place or behind it."""
        at = bisect_left(self._places, place)
        return self._places[at] if at < len(self._places) else None

    def goes_on_at(self, place: int) -> int | None:
        """Of a piece where much is left out, far behind the last one that matters: where reading goes on."""
        if place not in self._gap:
            return None
        at = bisect_right(self._places, place)
        return self._places[at] if place - self._places[at - 1] > _FOLLOWED else None

    def skips_progress(self, start: int, end: int | None) -> bool:
        """Whether lines between two places report progress."""
        progress: Sequence[int] = self._matters.progress if self._matters else ()
        at = bisect_left(progress, start)
        return at < len(progress) and (end is None or progress[at] < end)

    def pieces(self, place: int) -> Iterator[tuple[int, int, bytes]]:
        """(place, number of the line, bytes) of each piece from a place on, without secrets and empty ones."""
        size = 1  # mostly only one is wanted; then more, while a reader is awake
        while place < len(self._pieces):
            some = self._pieces[place : place + size]
            for piece in redact_lines(some if isinstance(some, list) else some.to_pylist()):
                begin = self._begins[place] + place
                if piece or not self._overwritten(begin):
                    # What ddx said there is an answer, which is no evidence for the next.
                    said = b"" if piece.startswith(_OURS) else piece.rstrip(BREAK)
                    yield place, self._number(place, begin), said
                place += 1
            size = 64

    def _overwritten(self, at: int) -> bool:
        """Of an empty piece: whether a carriage return stands on one side of it."""
        return b"\r" in self.block.data[max(0, at - 1) : at + 1]

    def _number(self, place: int, begin: int) -> int:
        breaks = self.block.data.count(BREAK, 0, begin) if self._has_breaks else 0
        return self.block.number + (place if self._line_of is None else self._line_of[place]) + breaks
