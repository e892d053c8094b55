"""Rounds: the steps of a training job, which repeat themselves, read many entries at a time.

Once the entries of a record turn out to come in the same order again, those of one round are cut into blocks. A block
is compared with what comes next as a whole, and its numbers are taken out at once. Where one does not fit (a number
has grown a byte, say), its entries are read one by one, and make the block of the next round.

The ranks of a job do the same, too: what one record held, from its beginning, is the first round of the next one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddx_tools.formats.fr_stencils import Batches, Path, Stencil

    Trail = Sequence[tuple[Path, Stencil]]
    """What some entries in a row were read by."""

_BLOCK_ENTRIES = 16
_LONGEST_ROUND = 1024
_LONGEST_RECORD = 4096
"""Entries of a record that are the first round of the next one."""
_CONTEXT = 16
"""So many of the last entries have to come in the same order, for it to be looked whether a round does."""
_MOST_CANDIDATES = 32


class Block:
    """Some entries in a row with numbers of the same kinds, as one stencil; it is made when it is first needed."""

    def __init__(self, trail: Trail) -> None:
        self.trail = trail
        self.columns = trail[0][1].columns

    @cached_property
    def size_bytes(self) -> int:
        """Of the entries."""
        return sum(len(path.start) + stencil.fixed.size - 1 for path, stencil in self.trail)

    @cached_property
    def fixed(self) -> struct.Struct:
        """Reads what is not in holes, and the byte behind the last entry."""
        return struct.Struct(f"<{''.join([f'{len(path.start)}s{each.formats[0]}' for path, each in self.trail])}1s")

    @cached_property
    def constants(self) -> tuple[bytes, ...]:
        """What that gives."""
        constants: list[bytes] = []
        for path, stencil in self.trail:
            constants += path.start, *stencil.constants
            # What follows is the next one, but for the last.
            constants[-1] = constants[-1][:-1]
        return (*constants, self.trail[-1][1].constants[-1][-1:])

    @cached_property
    def _holes(self) -> struct.Struct:
        return struct.Struct(f"<{''.join([f'{len(path.start)}x{each.formats[1]}' for path, each in self.trail])}")

    @cached_property
    def _pack(self) -> struct.Struct:
        return struct.Struct(f"={len(self.trail) * len(self.columns)}q")

    @cached_property
    def _paths(self) -> list[bytes]:
        return [path.value for path, _ in self.trail]

    @cached_property
    def _stencils(self) -> list[int]:
        return [stencil.number for _, stencil in self.trail]

    @cached_property
    def _new(self) -> list[Path]:
        return [path for path, _ in self.trail if path.new is not None]

    def read(self, data: bytes, position: int, memo: list[Any], batches: Batches) -> int:
        """Add the entries at `position` to their batch; the position behind them, or -1 if they are others."""
        if position + self.fixed.size > len(data) or self.fixed.unpack_from(data, position) != self.constants:
            return -1
        values = len(memo)
        for path in self._new:
            if path.new is not None and not path.new.add_to(memo):
                del memo[values:]
                return -1
        batch = batches[self.columns]
        batch.paths += self._paths
        batch.stencils += self._stencils
        batch.numbers += self._pack.pack(*self._holes.unpack_from(data, position))
        return position + self.fixed.size - 1


class Rounds:
    """What is known of the rounds of the entries that one template reads.

    `by_path`: entries come with call paths, which tell them apart; else the stencils do.
    """

    def __init__(self, by_path: bool) -> None:
        self._by_path = by_path
        self._blocks: list[Block] = []
        self._at = 0
        """The block that comes next."""
        self._trail: list[tuple[Path, Stencil]] = []
        """What the last entries were read by, as long as no round is known."""
        self._places = ""
        """For each of them a character that stands for its place in the program."""
        self._record: list[Block] = []
        """All of the record from its first entry on, up to a limit."""
        self._record_entries = 0
        self.last: tuple[Path, Stencil]
        """What the last entry was read by that a block has read."""

    @property
    def next_entries(self) -> int:
        """How many entries the next block has; 0 if no round is known."""
        return len(self._blocks[self._at].trail) if self._blocks else 0

    @property
    def size_bytes(self) -> int:
        """Of the entries of the record that are known."""
        return sum(block.size_bytes for block in self._record)

    def restart(self) -> None:
        """Another record begins."""
        self._forget()
        self._blocks, self._record, self._record_entries = self._record, [], 0

    def read(self, data: bytes, position: int, most: int, memo: list[Any], batches: Batches) -> tuple[int, int]:
        """Add blocks as long as they fit, at most `most` entries; the position behind them, and how many entries."""
        read = 0
        while self._blocks:
            block = self._blocks[self._at]
            if read + len(block.trail) > most:
                break
            after = block.read(data, position, memo, batches)
            if after < 0:
                break
            position = after
            read += len(block.trail)
            self.last = block.trail[-1]
            self._note([block])
            self._at = (self._at + 1) % len(self._blocks)
        return position, read

    def learn(self, trail: Trail, whole: bool) -> None:
        """Take in what the entries were read by that did not fit into the next block, or for which there was none.

        `whole`: all of them could be read. If not, and it is the first one, the record may go on behind it as before.
        """
        blocks = list(_blocks(trail))
        self._note(blocks)
        if not self._blocks:
            self._search(trail)
        elif whole and self._places_of(trail) == self._places_of(self._blocks[self._at].trail):
            self._blocks[self._at : self._at + 1] = blocks
            self._at = (self._at + len(blocks)) % len(self._blocks)
        elif trail:
            self._forget()

    def _forget(self) -> None:
        """Nobody knows any more where in its round the record is."""
        self._blocks, self._at = [], 0
        self._trail, self._places = [], ""

    def _note(self, blocks: Sequence[Block]) -> None:
        if self._record_entries < _LONGEST_RECORD:
            self._record += blocks
            self._record_entries += sum([len(block.trail) for block in blocks])

    def _search(self, trail: Trail) -> None:
        self._trail = [*self._trail, *trail][-2 * _LONGEST_ROUND :]
        self._places = (self._places + self._places_of(trail))[-2 * _LONGEST_ROUND :]
        length = round_length(self._places)
        if length:
            length *= -(-_BLOCK_ENTRIES // length)  # of short rounds several are one
            self._blocks = list(_blocks(self._trail[-length:]))

    def _places_of(self, trail: Trail) -> str:
        return "".join([chr(path.place if self._by_path else stencil.number) for path, stencil in trail])


def round_length(places: str) -> int:
    """After how many characters the last ones repeat themselves, all of a round; 0 if they do not."""
    end = len(places)
    context = places[-_CONTEXT:]
    before = end - 1
    for _ in range(_MOST_CANDIDATES if end > _CONTEXT else 0):
        at = places.rfind(context, 0, before)
        length = end - _CONTEXT - at
        if at < 0 or 2 * length > end:
            return 0
        if places[-length:] == places[-2 * length : -length]:
            return length
        before = at + _CONTEXT - 1
    return 0


def _blocks(trail: Trail) -> Iterator[Block]:
    """Entries in blocks, each with numbers of the same kinds."""
    for _, alike in groupby(trail, key=lambda each: each[1].columns):
        together = tuple(alike)
        for start in range(0, len(together), _BLOCK_ENTRIES):
            yield Block(together[start : start + _BLOCK_ENTRIES])
