"""A pickle reader for data that anybody may have written: containers, strings and numbers, nothing else.

Flight records are pickles (torch/csrc/jit/serialization/pickler.cpp, protocol 2), and a pickle is a program.
Refusing classes in `find_class` is not enough: extension codes bypass it once cached, a `LONG_BINPUT` with a
huge index allocates gigabytes, and a tuple nested 150,000 deep crashes the interpreter when it is hashed.
So the opcodes are checked first, and only a program of harmless ones reaches the C unpickler.

The check runs at the speed of `re`: runs of fixed-size opcodes are one match, and only strings, whose length
a regular expression cannot follow, cost a step in Python. Torch writes each distinct string once.
"""

from __future__ import annotations

import io
import pickle
import re
from typing import Any, NoReturn

from ddx_tools.errors import UnreadableInput

MAX_BYTES = 64 << 20
"""Largest pickle that is read. 2,000 entries with 20 frames each are under 1 MiB."""

MAX_CONTAINERS = 2_000_000
"""Most lists and dicts in one pickle: bounds what a small file of empty containers can allocate (~0.5 GB)."""

MAX_TUPLES = 50_000
"""Most tuples in one pickle (an entry holds one). Hashing nested tuples uses 80 bytes of C stack a level:
100,000 levels pass on an 8 MiB stack, 150,000 crash the interpreter (CPython 3.11)."""

MAX_MEMO_INDEX = 4 << 20
"""Largest index of an explicit memo slot: the C unpickler allocates 16 bytes for every slot up to it."""

_BUFFER_BYTES = 1 << 16

_LONG = b"|".join(b"\\x%02x.{%d}" % (n, n) for n in range(9))

_FIXED_RUN = re.compile(
    rb"(?:h."  # BINGET
    rb"|K."  # BININT1
    rb"|q."  # BINPUT
    rb"|[()\]}NaesutN\x85\x86\x87\x88\x89\x94]"  # MARK, containers, APPEND, SETITEM, TUPLE, MEMOIZE, …
    rb"|[Jj].{4}"  # BININT, LONG_BINGET
    rb"|M.{2}"  # BININT2
    rb"|\x8a(?:" + _LONG + rb")"  # LONG1 of at most 64 bits: wider keys could be made to collide
    rb"|G.{8}"  # BINFLOAT
    rb"|\x95.{8}"  # FRAME
    rb")*+",
    re.DOTALL,
)

_BINUNICODE, _SHORT_BINUNICODE, _LONG_BINPUT, _STOP = b"X"[0], 0x8C, b"r"[0], b"."[0]

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


class _Builtins(pickle.Unpickler):
    """The C unpickler without a way to name anything: the second lock behind the check of the opcodes."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"refused to load {module}.{name}"[:200])

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError("refused a persistent id")


def load(data: bytes) -> Any:
    """The value of a pickle of builtin containers, strings, numbers, booleans and None.

    Raises `UnreadableInput` for anything else: other opcodes, truncation, limits exceeded. Runs no code of
    the pickle, whatever it holds.
    """
    _check(data)
    try:
        # Without a buffer to peek into, the unpickler would read opcode by opcode through Python calls.
        return _Builtins(io.BufferedReader(io.BytesIO(data), _BUFFER_BYTES)).load()
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        OverflowError,
        MemoryError,
        RecursionError,
    ) as error:
        raise UnreadableInput(f"not a readable pickle: {str(error)[:200] or type(error).__name__}") from None


def _check(data: bytes) -> None:
    """Walk the opcodes once; return only if all of them are harmless and within the limits."""
    size = len(data)
    if size > MAX_BYTES:
        raise UnreadableInput(f"a pickle of {size} bytes is larger than the {MAX_BYTES} that are read")
    if size < 2 or data[0] != 0x80:
        raise UnreadableInput("not a pickle of protocol 2 or later")
    if data[1] not in (2, 3, 4, 5):
        raise UnreadableInput(f"unknown pickle protocol {data[1]}")
    position = 2
    containers = tuples = 0
    run = _FIXED_RUN.match
    while position < size:
        end = run(data, position).end()  # type: ignore[union-attr]  # matches the empty run too
        if end > position:
            # Bytes of arguments are counted too: an overestimate, and the limits leave room for it.
            containers += data.count(b"}", position, end) + data.count(b"]", position, end)
            tuples += data.count(b"\x86", position, end) + data.count(b"t", position, end)
            tuples += data.count(b"\x85", position, end) + data.count(b"\x87", position, end)
            if containers > MAX_CONTAINERS or tuples > MAX_TUPLES:
                raise UnreadableInput("more nested containers than a flight record can hold")
            position = end
            continue
        position = _after_counted(data, position)
        if position < 0:
            return
    raise UnreadableInput(f"the pickle is truncated: it ends after {size} bytes without its end mark")


def _after_counted(data: bytes, position: int) -> int:
    """The position behind an opcode whose length or argument needs a look; -1 behind the end mark."""
    opcode = data[position]
    if opcode == _BINUNICODE and position + 5 <= len(data):
        end = position + 5 + int.from_bytes(data[position + 1 : position + 5], "little")
    elif opcode == _SHORT_BINUNICODE and position + 2 <= len(data):
        end = position + 2 + data[position + 1]
    elif opcode == _LONG_BINPUT and position + 5 <= len(data):
        end = position + 5
        if int.from_bytes(data[position + 1 : end], "little") > MAX_MEMO_INDEX:
            raise UnreadableInput(f"memo index out of bounds at byte {position}")
    elif opcode == _STOP:
        return -1
    else:
        end = _refuse(data, position)
    if end > len(data):
        raise UnreadableInput(f"the pickle is truncated: a string at byte {position} runs past the end")
    return end


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
