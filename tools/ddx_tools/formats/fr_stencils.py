"""Stencils: the bytes of an entry with holes where its numbers are, to read entries that are written like earlier ones.

A training step repeats itself. Entries of one kind differ in their numbers alone, which have places of their own, and
what follows a call path once mostly follows it again. So one comparison with the expected call path and one `unpack`
by the expected stencil read an entry; once it is known what comes again, many entries at a time (fr_rounds.py). Bytes
that equal those of an entry that was understood mean the same: a pickle says what it holds opcode by opcode, and what
its references stand for never changes.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict, deque
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from ddx_tools.formats.fr_meanings import Meanings
from ddx_tools.formats.fr_new_paths import NewPath, new_path
from ddx_tools.formats.fr_rounds import Rounds
from ddx_tools.formats.fr_templates import PATH, Template

_FLOAT = ord("G")
_HOLES = {ord("K"): (1, "B"), ord("M"): (1, "H"), ord("J"): (1, "i"), 0x8A: (2, "q"), _FLOAT: (1, "q")}
"""Opcodes of numbers: how many bytes come before the value (LONG1 has a length), and how `struct` reads it.

A float is big-endian, other than all else: it is taken for an integer here, and put right column by column.
"""

_MOST_TRIED = 12
_BETWEEN_SEARCHES = 64
"""Entries after which it is looked whether they repeat themselves."""
_MOST_NEW_VALUES = 1 << 18
"""Values that new call paths of one record may bring. The interpreter goes on, and has limits of its own."""
_MOST_KEPT = 4
_MOST_KEPT_BYTES = 8 << 20
_MOST_KEPT_STENCILS = 4096


@dataclass(eq=False, slots=True)
class Path:
    """The bytes with which an entry begins, up to the end of its call path."""

    place: int
    """Equal for equal call paths."""
    start: bytes
    value: bytes
    """The call path alone, or the name of one that was interpreted; empty without a call path."""
    new: NewPath | None = None
    """What it brings, if it is written for the first time."""
    rest: dict[Stencil | None, Stencil] = field(default_factory=dict)
    """The rest of the entry, the last time, by that of the entry before it."""


@dataclass(eq=False, slots=True)
class Stencil:
    """The bytes of an entry behind its call path, with holes where its numbers are."""

    number: int
    formats: tuple[str, str]
    """How `struct` reads what is not in holes, and what is in them, without the byte behind the entry."""
    fixed: struct.Struct
    """Reads what is not in holes, and the byte behind the entry: another one if somebody referred to the entry."""
    constants: tuple[bytes, ...]
    """What that gives."""
    holes: struct.Struct
    """Reads what is in them."""
    pack: struct.Struct
    """Writes that as integers of 64 bits."""
    path: bytes
    """The call path, where it does not come first; else empty."""
    shared: tuple[tuple[tuple[str, ...], bytes], ...]
    """Keys, and the raw bytes of their values: all that is neither a number nor a call path."""
    columns: tuple[tuple[str, bool], ...]
    """What the holes are called, and whether a float is in them."""


@dataclass(eq=False, slots=True)
class Batch:
    """Entries that have the same numbers."""

    paths: list[bytes] = field(default_factory=list)
    """`Path.value` of each entry; and so on."""
    stencils: list[int] = field(default_factory=list)
    """The numbers of their stencils."""
    numbers: bytearray = field(default_factory=bytearray)
    """The contents of all holes, entry by entry, as integers of 64 bits."""


Batches = defaultdict[tuple[tuple[str, bool], ...], Batch]
"""By `Stencil.columns`."""


class Shapes:
    """How the entries of one template are written. What they refer to is no part of it: that may differ by record."""

    def __init__(self, template: Template) -> None:
        self.paths: dict[bytes, Path] = {}
        self.next_path: dict[Path, Path] = {}
        """The call path that came behind another one, the last time."""
        # Objects that refer to each other in a circle would not be freed before somebody looks for circles.
        self.stencils: list[Stencil] = []
        self.by_constants: dict[tuple[bytes, ...], Stencil] = {}
        self.latest: deque[Stencil] = deque(maxlen=_MOST_TRIED)
        self.places: dict[bytes, int] = {}
        self.rounds = Rounds(by_path=template.has_path)
        self.meanings = Meanings()

    @property
    def are_few(self) -> bool:
        """Whether they can be kept for other records."""
        size = sum(map(len, self.paths)) + self.rounds.size_bytes
        return len(self.stencils) <= _MOST_KEPT_STENCILS and size <= _MOST_KEPT_BYTES


_kept: dict[Template, Shapes] = {}
"""Of the records that were read last: the next one is of another rank of the same job, mostly."""


class StencilReader:
    """Reads the entries of one template in one record; `memo`: the values that its references stand for."""

    def __init__(self, template: Template, numbers: Collection[str], memo: list[Any]) -> None:
        self.template = template
        self.batches: Batches = defaultdict(Batch)
        self.values = memo
        """What its references stand for."""
        self._numbers = numbers
        self._room_for_new = _MOST_NEW_VALUES
        # Taken out, so that no two threads read by them at a time.
        kept: Shapes | None = _kept.pop(template, None)
        self._shapes = kept or Shapes(template)
        self._shapes.rounds.restart()
        self._path = Path(-1, b"", b"")
        self._stencil: Stencil | None = None

    @property
    def count(self) -> int:
        """How many entries were read."""
        return sum(len(batch.paths) for batch in self.batches.values())

    @property
    def meanings(self) -> Meanings:
        """What is known of what it reads."""
        return self._shapes.meanings

    def stencil(self, number: int) -> Stencil:
        """The stencil of a number in `batches`."""
        return self._shapes.stencils[number]

    def keep_shapes(self) -> None:
        """Leave what is known to the next record. Nothing may be read with this reader any more."""
        if self._shapes.are_few:
            for oldest in list(_kept)[: 1 - _MOST_KEPT]:
                _kept.pop(oldest, None)
            _kept[self.template] = self._shapes

    def read(self, data: bytes, position: int, most: int) -> int:
        """Read entries from `position` on as long as they fit, and no more than `most`; the position behind them."""
        rounds = self._shapes.rounds
        while most > 0:
            position, read = rounds.read(data, position, most, self.values, self.batches)
            if read:
                most -= read
                self._path, self._stencil = rounds.last
            wanted = min(most, rounds.next_entries or _BETWEEN_SEARCHES)
            trail: list[tuple[Path, Stencil]] = []
            position = self._read_singly(data, position, wanted, trail)
            most -= len(trail)
            rounds.learn(trail, whole=len(trail) == wanted)
            if len(trail) < wanted:
                break
        return position

    def _read_singly(self, data: bytes, position: int, most: int, trail: list[tuple[Path, Stencil]]) -> int:
        """The same, one after the other. `trail`: takes what they were read by."""
        path, stencil, next_path, memo = self._path, self._stencil, self._shapes.next_path, self.values
        values = len(memo)
        try:
            for _ in repeat(None, most):
                following = next_path.get(path)
                if (
                    following is None
                    or not data.startswith(following.start, position)
                    or (following.new is not None and not following.new.add_to(memo))
                ):
                    following = self._path_at(data, position)
                    if following is None:
                        break
                    next_path[path] = following
                behind = position + len(following.start)
                expected = following.rest.get(stencil)
                if expected is None or expected.fixed.unpack_from(data, behind) != expected.constants:
                    expected = self._stencil_at(data, behind)
                    if expected is None:
                        break
                    following.rest[stencil] = expected
                path, stencil = following, expected
                position = self._add(data, behind, path.value, stencil)
                values = len(memo)
                trail.append((path, stencil))
        except struct.error:  # an entry is expected where the bytes end
            pass
        del memo[values:]  # of an entry that does not fit as a whole
        self._path, self._stencil = path, stencil
        return position

    def read_rest(self, data: bytes, position: int, path: bytes) -> int:
        """Read the rest of an entry whose call path was interpreted; the position behind it, or -1 if it does not fit.

        `path`: a name for the call path.
        """
        stencil = self._stencil_at(data, position)
        if stencil is None:
            return -1
        self._path, self._stencil = Path(-1, path, path), stencil
        return self._add(data, position, path, stencil)

    def _path_at(self, data: bytes, position: int) -> Path | None:
        """The call path of an entry; what it brings is added to the values of the record."""
        found = self.template.head.match(data, position)
        if found is not None:
            known = self._shapes.paths.get(found[0])
            return known or self._path_of(found[0], found[1] if self.template.has_path else b"", None)
        new = new_path(data, position, self.template.beginning, self.values) if self.template.has_path else None
        if new is None:
            return None
        self._room_for_new -= len(new.texts_and_frames)
        if self._room_for_new < 0 or not new.add_to(self.values):
            return None
        return self._path_of(data[position : position + new.size], new.value, new)

    def _path_of(self, start: bytes, value: bytes, new: NewPath | None) -> Path:
        places = self._shapes.places
        path = self._shapes.paths[start] = Path(places.setdefault(value, len(places)), start, value, new)
        return path

    def _stencil_at(self, data: bytes, position: int) -> Stencil | None:
        # To try some costs less than to match the expression.
        for stencil in self._shapes.latest:
            fits_in = position + stencil.fixed.size <= len(data)
            if fits_in and stencil.fixed.unpack_from(data, position) == stencil.constants:
                return stencil
        found = self.template.rest.match(data, position)
        return None if found is None or found.end() == len(data) else self._stencil_of(found, data)

    def _stencil_of(self, found: re.Match[bytes], data: bytes) -> Stencil:
        fixed = holes = ""
        constant = found.start()
        columns: list[tuple[str, bool]] = []
        path = b""
        shared: list[tuple[tuple[str, ...], bytes]] = []
        for group, (kind, keys) in enumerate(self.template.columns, 1):
            start, end = found.span(group)
            if kind == PATH:
                path = data[start:end]
            elif kind not in self._numbers:
                shared.append((keys, data[start:end]))
            elif data[start] in _HOLES:  # else there is no number
                opcode, code = _HOLES[data[start]]
                fixed += f"{start + opcode - constant}s{end - start - opcode}x"
                holes += f"{start + opcode - constant}x{code}"
                constant = end
                columns.append((kind, data[start] == _FLOAT))
        last = found.end() - constant
        layout = struct.Struct(f"<{fixed}{last + 1}s")
        constants = layout.unpack_from(data, found.start())
        stencil = self._shapes.by_constants.get(constants)
        if stencil is None:
            formats = f"{fixed}{last}s", f"{holes}{last}x"
            pack = struct.Struct(f"={len(columns)}q")
            number = len(self._shapes.stencils)
            contents = struct.Struct(f"<{holes}")
            stencil = Stencil(number, formats, layout, constants, contents, pack, path, tuple(shared), tuple(columns))
            self._shapes.by_constants[constants] = stencil
            self._shapes.stencils.append(stencil)
            self._shapes.latest.appendleft(stencil)
        return stencil

    def _add(self, data: bytes, position: int, path: bytes, stencil: Stencil) -> int:
        """Add an entry to its batch; the position behind it."""
        batch = self.batches[stencil.columns]
        batch.paths.append(path)
        batch.stencils.append(stencil.number)
        batch.numbers += stencil.pack.pack(*stencil.holes.unpack_from(data, position))
        return position + stencil.fixed.size - 1
