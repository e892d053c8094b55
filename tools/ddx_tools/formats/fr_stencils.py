"""Stencils: the bytes of an entry with holes where its numbers are, to read entries that are written like earlier ones.

A training step repeats itself. Entries of one kind differ in their numbers alone, which have places of their own, and
what follows a call path once mostly follows it again. So one comparison with the expected call path and one `unpack`
by the expected stencil read an entry. Bytes that equal those of an entry that was understood mean the same: a pickle
says what it holds opcode by opcode, and what its references stand for never changes.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from ddx_tools.formats.fr_templates import PATH, Template

_HOLES = {ord("K"): (1, "B"), ord("M"): (1, "H"), ord("J"): (1, "i"), 0x8A: (2, "q"), ord("G"): (1, "8s")}
"""Opcodes of numbers: how many bytes come before the value (LONG1 has a length), and how `struct` reads it.

A float (`G`) is big-endian, other than all else: its bytes are taken out as they are.
"""

_MOST_TRIED = 12


@dataclass(eq=False, slots=True)
class Path:
    """The bytes with which an entry begins, up to the end of its call path."""

    start: bytes
    value: bytes
    """The call path alone, or the name of one that was interpreted; empty without a call path."""
    rest: dict[Stencil | None, Stencil] = field(default_factory=dict)
    """The rest of the entry, the last time, by that of the entry before it."""


@dataclass(eq=False, slots=True)
class Stencil:
    """The bytes of an entry behind its call path, with holes where its numbers are."""

    number: int
    fixed: struct.Struct
    """Reads what is not in holes, and the byte behind the entry: another one if somebody referred to the entry."""
    constants: tuple[bytes, ...]
    """What that gives."""
    holes: struct.Struct
    """Reads what is in them: of a float its bytes."""
    path: bytes
    """The call path, where it does not come first; else empty."""
    shared: tuple[tuple[tuple[str, ...], bytes], ...]
    """Keys, and the raw bytes of their values: all that is neither a number nor a call path."""
    batch: Batch
    """Where entries with such holes are collected."""


@dataclass(eq=False, slots=True)
class Batch:
    """Entries that have the same numbers."""

    paths: list[bytes] = field(default_factory=list)
    """`Path.value` of each entry; and so on."""
    stencils: list[int] = field(default_factory=list)
    """The numbers of their stencils."""
    numbers: list[Any] = field(default_factory=list)
    """The contents of all holes, entry by entry: integers; the bytes of floats."""


class StencilReader:
    """Reads the entries of one template in one dump."""

    def __init__(self, template: Template, numbers: Collection[str]) -> None:
        self.template = template
        self.batches: dict[tuple[str, ...], Batch] = {}
        """By what the holes are called."""
        self.stencils: list[Stencil] = []
        self._numbers = numbers
        self._paths: dict[bytes, Path] = {}
        self._stencils: dict[tuple[bytes, ...], Stencil] = {}
        self._latest: deque[Stencil] = deque(maxlen=_MOST_TRIED)
        # Objects that refer to each other in a circle would not be freed before somebody looks for circles.
        self._next: dict[Path, Path] = {}
        """The call path that came behind another one, the last time."""
        self._path = Path(b"", b"")
        self._stencil: Stencil | None = None

    @property
    def count(self) -> int:
        """How many entries were read."""
        return sum(len(batch.paths) for batch in self.batches.values())

    def read(self, data: bytes, position: int, most: int) -> int:
        """Read entries from `position` on as long as they fit, and no more than `most`; the position behind them."""
        path, stencil, next_path = self._path, self._stencil, self._next
        try:
            for _ in repeat(None, most):
                following = next_path.get(path)
                if following is None or not data.startswith(following.start, position):
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
                position = _add(data, behind, path.value, stencil)
        except struct.error:  # an entry is expected where the bytes end
            pass
        self._path, self._stencil = path, stencil
        return position

    def read_rest(self, data: bytes, position: int, path: bytes) -> int:
        """Read the rest of an entry whose call path was interpreted; the position behind it, or -1 if it does not fit.

        `path`: a name for the call path.
        """
        stencil = self._stencil_at(data, position)
        if stencil is None:
            return -1
        self._path, self._stencil = Path(path, path), stencil
        return _add(data, position, path, stencil)

    def _path_at(self, data: bytes, position: int) -> Path | None:
        found = self.template.head.match(data, position)
        if found is None:
            return None
        path = self._paths.get(found[0])
        if path is None:
            path = self._paths[found[0]] = Path(found[0], found[1] if self.template.has_path else b"")
        return path

    def _stencil_at(self, data: bytes, position: int) -> Stencil | None:
        # To try some costs less than to match the expression.
        for stencil in self._latest:
            fits_in = position + stencil.fixed.size <= len(data)
            if fits_in and stencil.fixed.unpack_from(data, position) == stencil.constants:
                return stencil
        found = self.template.rest.match(data, position)
        return None if found is None or found.end() == len(data) else self._stencil_of(found, data)

    def _stencil_of(self, found: re.Match[bytes], data: bytes) -> Stencil:
        fixed = holes = "<"
        constant = found.start()
        columns: list[str] = []
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
                columns.append(kind)
        layout = struct.Struct(f"{fixed}{found.end() + 1 - constant}s")
        constants = layout.unpack_from(data, found.start())
        stencil = self._stencils.get(constants)
        if stencil is None:
            batch = self.batches.setdefault(tuple(columns), Batch())
            number = len(self.stencils)
            stencil = Stencil(number, layout, constants, struct.Struct(holes), path, tuple(shared), batch)
            self._stencils[constants] = stencil
            self.stencils.append(stencil)
            self._latest.appendleft(stencil)
        return stencil


def _add(data: bytes, position: int, path: bytes, stencil: Stencil) -> int:
    """Add an entry to its batch; the position behind it."""
    batch = stencil.batch
    batch.paths.append(path)
    batch.stencils.append(stencil.number)
    batch.numbers += stencil.holes.unpack_from(data, position)
    return position + stencil.fixed.size - 1
