"""A reader of pickled flight records that never unpickles: it can build lists, dicts, strings and numbers only.

Flight records are pickles (torch/csrc/jit/serialization/pickler.cpp, protocol 2), and a pickle is a program. This
is an interpreter of the few opcodes that plain data needs; whatever else a file holds is refused by name.

Interpreting every opcode would take too long for thousands of ranks, so entries are read by templates
(fr_templates.py) where they can be, and by what templates have read before (fr_stencils.py). Where an entry does not
match, it brings a new string, mostly in its call path, which comes first: where that is written in another way than
torch does (fr_new_paths.py), it is interpreted, and the rest matched again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NoReturn

from ddx_tools.errors import UnreadableInput
from ddx_tools.formats.fr_stencils import StencilReader
from ddx_tools.formats.fr_templates import template_of

MAX_BYTES = 64 << 20
"""Largest pickle that is read. 2,000 entries with 20 frames each are under 1 MiB."""

MAX_OPERATIONS = 10_000_000
"""Most opcodes that are interpreted: bounds time (seconds) and memory (some 64 bytes each) of a hostile file."""

MAX_ENTRIES = 500_000
"""Most entries of one record. As torch writes them, no more of them are in `MAX_BYTES`."""

READ = object()
"""Stands in the list of entries for one that a template has read."""

_HEADER_BYTES = 2
_MAX_TEMPLATES = 4
_MAX_LESSONS = 8
"""Kinds of entries that are tried as templates: not every entry makes one."""
_MAX_KEYS = 64

_REFUSED = {
    "c": "GLOBAL",
    "\x93": "STACK_GLOBAL",
    "R": "REDUCE",
    "b": "BUILD",
    "i": "INST",
    "o": "OBJ",
    "\x81": "NEWOBJ",
    "\x92": "NEWOBJ_EX",
    "P": "PERSID",
    "Q": "BINPERSID",
    "\x82": "EXT1",
    "\x83": "EXT2",
    "\x84": "EXT4",
}


@dataclass(frozen=True)
class Scanned:
    """A pickle's value, and the entries that templates have read: `READ` stands for them in the value."""

    value: Any
    templates: tuple[StencilReader, ...]
    decode: Callable[[bytes], list[Any]]
    """The values that the raw bytes of a column stand for, one for each of its keys."""


def load(data: bytes) -> Any:
    """The value of a pickle of lists, tuples, strings, numbers, booleans, None and dicts with strings as keys.

    Raises `UnreadableInput` for anything else: other opcodes, truncation, limits exceeded. Runs no code of
    the pickle, whatever it holds.
    """
    return _Interpreter(data, {}, {}).run()


def scan(data: bytes, kinds: Mapping[str, str], numbers: Mapping[str, tuple[type, ...]]) -> Scanned:
    """The value of a pickled dump, its entries read by templates where they fit. Raises as `load` does.

    `kinds`: for each key of an entry that is wanted, a name for the column; neighbouring keys of one name share it.
    `numbers`: the columns that hold numbers of their own in each entry, and the types that templates read there.
    """
    interpreter = _Interpreter(data, kinds, numbers)
    value = interpreter.run()
    # Else an entry was read and then thrown away: no recorder writes that, and nobody knows what it would mean.
    entries = value.get("entries") if type(value) is dict else None
    if interpreter.rows != (entries.count(READ) if type(entries) is list else 0):
        raise UnreadableInput("the pickle is damaged: it takes back entries that it gave")
    for template in interpreter.templates:
        template.keep_shapes()
    return Scanned(value, tuple(interpreter.templates), interpreter.decode)


class _Interpreter:
    """The pickle machine: a stack, marks on it, and the memo."""

    def __init__(self, data: bytes, kinds: Mapping[str, str], numbers: Mapping[str, tuple[type, ...]]) -> None:
        size = len(data)
        if size > MAX_BYTES:
            raise UnreadableInput(f"a pickle of {size} bytes is larger than the {MAX_BYTES} that are read")
        if size < _HEADER_BYTES or data[0] != 0x80:
            raise UnreadableInput("not a pickle of protocol 2 or later")
        if data[1] not in (2, 3, 4, 5):
            raise UnreadableInput(f"unknown pickle protocol {data[1]}")
        self.templates: list[StencilReader] = []
        self._data = data
        self._kinds = kinds
        self._numbers = numbers
        self._memo: list[Any] = []
        self._interpreted: dict[bytes, Any] = {}
        self._lessons = _MAX_LESSONS if kinds else 0

    @property
    def rows(self) -> int:
        """How many entries templates have read."""
        return sum(template.count for template in self.templates)

    def run(self) -> Any:
        """The value of the whole pickle."""
        stack = self._interpret(self._data, _HEADER_BYTES)
        if len(stack) != 1:
            raise UnreadableInput(f"not a readable pickle: it leaves {len(stack)} values")
        return stack[0]

    def decode(self, raw: bytes) -> list[Any]:
        """The values of a column's raw bytes, which refer to strings that the dump defined."""
        if raw in self._interpreted:
            return [self._interpreted[raw]]
        return self._interpret(raw + b".", 0)[::2]

    def _interpret(self, data: bytes, position: int) -> list[Any]:
        try:
            return self._execute(data, position)
        except (IndexError, struct.error):
            if data.endswith(b"."):
                raise UnreadableInput("the pickle is damaged: it uses a value that it never gave") from None
            raise UnreadableInput(
                f"the pickle is truncated: it ends after {len(data)} bytes without its end mark"
            ) from None
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UnreadableInput(f"not a readable pickle: {str(error)[:200]}") from None

    def _execute(self, data: bytes, position: int) -> list[Any]:
        """The stack at the end mark. One branch an opcode, the frequent ones first: calls would double the time."""
        stack: list[Any] = []
        marks: list[int] = []
        memo, push = self._memo, stack.append
        limit = MAX_OPERATIONS
        while True:
            limit -= 1
            opcode = data[position]
            position += 1
            if opcode == 0x68:  # h BINGET
                push(memo[data[position]])
                position += 1
            elif opcode == 0x58:  # X BINUNICODE
                size = _U32(data, position)[0]
                position += 4 + size
                push(_text(data, position - size, position))
                # torch numbers each string at once.
                if data[position] == 0x72 and _U32(data, position + 1)[0] == len(memo):
                    memo.append(stack[-1])
                    position += 5
            elif opcode == 0x6A:  # j LONG_BINGET
                push(memo[_U32(data, position)[0]])
                position += 4
            elif opcode == 0x28:  # ( MARK
                marks.append(len(stack))
            elif opcode == 0x7D:  # } EMPTY_DICT
                if len(marks) == 2 and self.templates and _in_entries(stack, marks):
                    after = self._match(data, position - 1, stack)
                    if after >= position:
                        position = after
                        continue
                push({})
            elif opcode == 0x72:  # r LONG_BINPUT
                _put(memo, _U32(data, position)[0], stack[-1])
                position += 4
            elif opcode == 0x75:  # u SETITEMS
                start = marks.pop()
                items = stack[start:]
                del stack[start:]
                _fill(_dict(stack), items)
                if len(marks) == 2 and self._lessons and _in_entries(stack, marks):
                    self._learn(stack[-1])
            elif opcode == 0x4B:  # K BININT1
                push(data[position])
                position += 1
            elif opcode == 0x4D:  # M BININT2
                push(_U16(data, position)[0])
                position += 2
            elif opcode == 0x71:  # q BINPUT
                _put(memo, data[position], stack[-1])
                position += 1
            elif opcode == 0x5D:  # ] EMPTY_LIST
                push([])
            elif opcode == 0x65:  # e APPENDS
                start = marks.pop()
                items = stack[start:]
                del stack[start:]
                _list(stack).extend(items)
                if len(marks) == 3 and self.templates and len(stack) == marks[2] + 2 and _in_entries(stack, marks):
                    after = self._match_rest(data, position, stack, marks[2] - 1)
                    if after >= position:
                        position = after
                        stack[marks.pop() - 1 :] = [READ]
            elif opcode == 0x4E:  # N NONE
                push(None)
            elif opcode == 0x88:  # NEWTRUE
                push(True)
            elif opcode == 0x89:  # NEWFALSE
                push(False)
            elif opcode == 0x4A:  # J BININT
                push(_I32(data, position)[0])
                position += 4
            elif opcode == 0x8A:  # LONG1, of at most 64 bits
                size = data[position]
                position += 1 + size
                if size > 8 or position > len(data):
                    raise UnreadableInput(f"the pickle is damaged at byte {position}: an integer of {size} bytes")
                push(int.from_bytes(data[position - size : position], "little", signed=True))
            elif opcode == 0x86:  # TUPLE2
                stack[-2:] = [_pair(stack)]
            elif opcode == 0x2E:  # . STOP
                if marks:
                    raise UnreadableInput("the pickle is damaged: it ends within a list or a dictionary")
                return stack
            elif opcode == 0x94:  # MEMOIZE
                memo.append(stack[-1])
            elif opcode == 0x8C:  # SHORT_BINUNICODE
                size = data[position]
                position += 1 + size
                push(_text(data, position - size, position))
            elif opcode == 0x47:  # G BINFLOAT
                push(_F64(data, position)[0])
                position += 8
            elif opcode == 0x61:  # a APPEND
                item = stack.pop()
                _list(stack).append(item)
            elif opcode == 0x73:  # s SETITEM
                items = stack[-2:]
                del stack[-2:]
                _fill(_dict(stack), items)
            elif opcode == 0x29:  # ) EMPTY_TUPLE
                push(())
            elif opcode in _TUPLES:  # TUPLE, TUPLE1, TUPLE3
                start = marks.pop() if opcode == 0x74 else len(stack) - _TUPLES[opcode]
                if start < 0:
                    raise IndexError
                stack[start:] = [tuple(stack[start:])]
            elif opcode == 0x95:  # FRAME: a hint of protocol 4 for readers of streams
                position += 8
            else:
                _refuse(data, position - 1)
            if limit < 0:
                raise UnreadableInput(f"more than {MAX_OPERATIONS} operations: more than a flight record can need")

    def _match(self, data: bytes, position: int, stack: list[Any]) -> int:
        """Read entries from `position` on by templates; the position behind them, or -1 if none fits."""
        for template in self.templates:
            before = template.count
            after = template.read(data, position, MAX_ENTRIES - self.rows + 1)
            if after > position:
                if self.rows > MAX_ENTRIES:
                    raise UnreadableInput(f"more than {MAX_ENTRIES} entries: more than a flight record can hold")
                stack.extend(repeat(READ, template.count - before))
                return after
        return -1

    def _match_rest(self, data: bytes, position: int, stack: list[Any], entry: int) -> int:
        """Read what follows the first value of the entry at `entry`; the position behind the entry, or -1."""
        if type(stack[entry]) is not dict or stack[entry]:
            return -1
        key, value = stack[-2:]
        for each in self.templates:
            if each.template.has_path and each.template.keys[0] == key:
                # A name that is no value: its bytes define strings.
                name = b"#%d" % len(self._interpreted)
                after = each.read_rest(data, position, name)
                if after >= position:
                    self._interpreted[name] = value
                    return after
        return -1

    def _learn(self, entry: dict[Any, Any]) -> None:
        """Make a template of an entry that was interpreted, unless there is one of its keys."""
        if len(entry) > _MAX_KEYS or len(self.templates) == _MAX_TEMPLATES:
            return
        keys = tuple(entry)
        if not any(each.template.keys == keys for each in self.templates):
            self._lessons -= 1
            references = {value: index for index, value in enumerate(self._memo) if type(value) is str}
            if template := template_of(entry, references, self._kinds, self._numbers):
                self.templates.append(StencilReader(template, self._numbers, self._memo))


_U16, _U32, _I32, _F64 = (struct.Struct(code).unpack_from for code in ("<H", "<I", "<i", ">d"))
_TUPLES = {0x74: 0, 0x85: 1, 0x87: 3}


def _in_entries(stack: list[Any], marks: list[int]) -> bool:
    """Whether the innermost open list is the value of the key `entries` of the outermost dictionary."""
    at = marks[1]
    return marks[0] == 1 and at >= 3 and type(stack[at - 1]) is list and stack[at - 2] == "entries"


def _text(data: bytes, start: int, end: int) -> str:
    if end > len(data):
        raise IndexError
    return data[start:end].decode("utf-8", "replace")


def _list(stack: list[Any]) -> list[Any]:
    top = stack[-1]
    if type(top) is not list:
        raise UnreadableInput("the pickle is damaged: it appends to what is no list")
    return top


def _dict(stack: list[Any]) -> dict[Any, Any]:
    top = stack[-1]
    if type(top) is not dict:
        raise UnreadableInput("the pickle is damaged: it sets items of what is no dictionary")
    return top


def _fill(target: dict[Any, Any], items: list[Any]) -> None:
    """Keys are strings. Hashing a tuple of shared tuples can take for ever, and numbers can be made to collide."""
    keys = items[::2]
    if len(items) % 2 or not {*map(type, keys)} <= {str}:
        raise UnreadableInput("the pickle holds a dictionary whose keys are no text: not a flight record")
    target.update(zip(keys, items[1::2], strict=True))


def _put(memo: list[Any], index: int, value: Any) -> None:
    """Every pickler counts: a slot that is far off would cost memory, one that is given twice is ambiguous."""
    if index != len(memo):
        raise UnreadableInput(f"the pickle is damaged: value {index} follows value {len(memo) - 1}")
    memo.append(value)


def _pair(stack: list[Any]) -> tuple[Any, Any]:
    return (stack[-2], stack[-1])


def _refuse(data: bytes, position: int) -> NoReturn:
    opcode = chr(data[position])
    if opcode in _REFUSED:
        raise UnreadableInput(
            f"refused: {_REFUSED[opcode]} at byte {position} would run code",
            "Nothing of it was loaded. A flight record holds plain data: this is another file, or a hostile one.",
        )
    if len(data) - position < 20:
        raise UnreadableInput(f"the pickle is truncated or damaged at byte {position} of {len(data)}")
    raise UnreadableInput(f"unexpected pickle opcode 0x{data[position]:02x} at byte {position}")
