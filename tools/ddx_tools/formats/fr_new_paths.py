"""Call paths that bring something new: their frames and texts, which are written out once and referred to later on.

A record begins with some dozens of them. They are read here by their own grammar, and as ranks of a job write the same
ones, what one brings is kept: for a record of another rank, where the same bytes follow as many values.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from ddx_tools.formats.fr_templates import reference

_MOST_FRAMES = 1000
_U16, _I32, _U32, _I64 = (struct.Struct(code).unpack_from for code in ("<H", "<i", "<I", "<q"))


@dataclass(frozen=True, slots=True)
class NewPath:
    """What a call path adds to the values that can be referred to."""

    size: int
    """Bytes, from where the entry begins to behind the path."""
    value: bytes
    """The path as it would be written the next time: references only."""
    first: int
    """How many values there are before it."""
    needs: tuple[tuple[int, str], ...]
    """Numbers of earlier texts that it refers to, and which they are."""
    texts_and_frames: tuple[str | dict[str, str | int], ...]
    """What it adds."""

    def add_to(self, memo: list[Any]) -> bool:
        """Add it to the values of a record; false, and nothing is added, if its references mean something else."""
        if len(memo) != self.first or any(memo[index] != text for index, text in self.needs):
            return False
        # Whoever reads a record may change its dictionaries.
        memo.extend([each if isinstance(each, str) else each.copy() for each in self.texts_and_frames])
        return True


def new_path(data: bytes, position: int, beginning: bytes, memo: list[Any]) -> NewPath | None:
    """The call path of the entry at `position`, which begins with `beginning`; None if it is written in another way."""
    if not data.startswith(beginning, position):
        return None
    reader = _Reader(data, position + len(beginning), memo)
    try:
        references = reader.frames()
    except (IndexError, struct.error, _Other):
        return None
    size = reader.position - position
    return NewPath(size, b"](%be" % references, len(memo), tuple(reader.needs), tuple(reader.added))


class _Other(Exception):
    """It is not what torch writes; whether it can be read at all, the interpreter tells."""


class _Reader:
    """A recursive descent: `frames` up to their end, each a reference or a dictionary that gets a number."""

    def __init__(self, data: bytes, position: int, memo: list[Any]) -> None:
        self.position = position
        self.needs: list[tuple[int, str]] = []
        self.added: list[str | dict[str, str | int]] = []
        self._data = data
        self._memo = memo

    def frames(self) -> bytes:
        """References to all of them."""
        data = self._data
        found: list[bytes] = []
        for _ in range(_MOST_FRAMES):
            opcode = data[self.position]
            if opcode == 0x6A:  # j LONG_BINGET
                found.append(self._known(5))
            elif opcode == 0x68:  # h BINGET
                found.append(self._known(2))
            elif opcode == 0x7D and data[self.position + 1] == 0x28:  # }( EMPTY_DICT MARK
                found.append(self._frame())
            elif opcode == 0x65:  # e APPENDS
                self.position += 1
                return b"".join(found)
            else:
                break
        raise _Other

    def _known(self, size: int) -> bytes:
        start, self.position = self.position, self.position + size
        index = self._data[start + 1] if size == 2 else _U32(self._data, start + 1)[0]
        if index >= len(self._memo) + len(self.added):
            raise _Other
        return self._data[start : self.position]

    def _frame(self) -> bytes:
        self.position += 2
        frame: dict[str, str | int] = {}
        while self._data[self.position] != 0x75:  # u SETITEMS
            key = self._value()
            value = self._value()
            if type(key) is not str:
                raise _Other
            frame[key] = value
        self.position += 1
        return self._number(frame)

    def _value(self) -> str | int:
        """A text or a number, as they are in frames."""
        data, position = self._data, self.position
        opcode = data[position]
        if opcode == 0x58:  # X BINUNICODE
            size = _U32(data, position + 1)[0]
            self.position = position + 5 + size
            text = data[position + 5 : self.position].decode("utf-8", "replace")
            self._number(text)
            return text
        if opcode in _REFERENCES:
            size = _REFERENCES[opcode]
            self.position = position + size
            return self._text(data[position + 1] if size == 2 else _U32(data, position + 1)[0])
        if opcode in _INTEGERS:
            size, unpack = _INTEGERS[opcode]
            self.position = position + size
            if opcode != 0x8A:
                return int(unpack(data, position + 1)[0]) if unpack else data[position + 1]
            if data[position + 1] == 8:
                return int(unpack(data, position + 2)[0])
        raise _Other

    def _text(self, index: int) -> str:
        known = len(self._memo)
        text = self._memo[index] if index < known else self.added[index - known]
        if type(text) is not str:
            raise _Other
        if index < known:
            self.needs.append((index, text))
        return text

    def _number(self, value: str | dict[str, str | int]) -> bytes:
        """Give a value the number that follows it; the reference to it."""
        data, position = self._data, self.position
        index = len(self._memo) + len(self.added)
        if data[position] == 0x71 and data[position + 1] == index:  # q BINPUT
            self.position += 2
        elif data[position] == 0x72 and _U32(data, position + 1)[0] == index:  # r LONG_BINPUT
            self.position += 5
        else:
            raise _Other
        self.added.append(value)
        return reference(index)


_REFERENCES = {0x68: 2, 0x6A: 5}
_INTEGERS: dict[int, tuple[int, Any]] = {0x4B: (2, None), 0x4D: (3, _U16), 0x4A: (5, _I32), 0x8A: (10, _I64)}
