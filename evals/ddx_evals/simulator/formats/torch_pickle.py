"""Writes the bytes that torch's C++ pickler writes for a flight record.

Source: torch 2.13.0, torch/csrc/jit/serialization/pickler.cpp, as called by `FlightRecorder::dump`. Protocol 2, with
habits that Python's own pickler does not have:

- a string is written once and referenced by value after that;
- lists, tuples and dicts are memoized only if they are shared: frame dicts that occur more than once, and the dump
  itself. Their memo slot is assigned after their content;
- every list and dict, even an empty one, is written with one MARK and one APPENDS or SETITEMS;
- an integer beyond 32 bits is LONG1 with 8 bytes.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping

_INT32 = struct.Struct("<i")
_UINT16 = struct.Struct("<H")
_UINT32 = struct.Struct("<I")
_INT64 = struct.Struct("<q")
_DOUBLE = struct.Struct(">d")


class PickledFrame(dict[str, object]):
    """A stack frame `{name, filename, line}`: one object for all its occurrences in a dump, recognised by identity."""


def encode(dump: Mapping[str, object]) -> bytes:
    """Pickle one dump. Lists and tuples that occur repeatedly as the same object are encoded faster.

    Values are None, bool, int, float, str, list, pair (tuple of two), dict and `PickledFrame`.
    """
    return _Pickler(_repeated_frames(dump)).dump(dump)


def _repeated_frames(dump: Mapping[str, object]) -> set[int]:
    """The identities of frames that occur more than once."""
    entries = dump.get("entries", [])
    assert isinstance(entries, list)
    stacks = [entry["frames"] for entry in entries if "frames" in entry]
    uses = Counter(map(id, stacks))
    seen: set[int] = set()
    repeated: set[int] = set()
    for stack in {id(stack): stack for stack in stacks}.values():
        frames = set(map(id, stack))
        repeated |= frames & seen
        seen |= frames
        if uses[id(stack)] > 1:
            repeated |= frames
        elif len(frames) < len(stack):
            repeated |= {frame for frame, count in Counter(map(id, stack)).items() if count > 1}
    return repeated


class _Pickler:
    def __init__(self, repeated_frames: set[int]) -> None:
        self._out = bytearray(b"\x80\x02")
        self._repeated_frames = repeated_frames
        self._strings: dict[str, bytes] = {}
        self._frames: dict[int, bytes] = {}
        self._settled: dict[int, bytes] = {}
        """The bytes of lists and pairs whose strings and frames are all references by now, by identity."""
        self._slots = 0

    def dump(self, dump: Mapping[str, object]) -> bytes:
        self._dict(dump)
        self._put()
        self._out += b"."
        return bytes(self._out)

    def _put(self) -> bytes:
        """Assign the next memo slot to the last written value; return the reference to it."""
        slot = self._slots
        self._slots += 1
        if slot < 256:
            self._out += b"q%c" % slot
            return b"h%c" % slot
        packed = _UINT32.pack(slot)
        self._out += b"r" + packed
        return b"j" + packed

    def _value(self, value: object) -> None:
        if isinstance(value, str):
            reference = self._strings.get(value)
            if reference is not None:
                self._out += reference
            else:
                self._string(value)
        elif isinstance(value, bool):
            self._out += b"\x88" if value else b"\x89"
        elif isinstance(value, int):
            self._out += integer(value)
        elif isinstance(value, list | tuple):
            settled = self._settled.get(id(value))
            if settled is not None:
                self._out += settled
            else:
                self._sequence(value)
        elif value is None:
            self._out += b"N"
        elif isinstance(value, PickledFrame):
            reference = self._frames.get(id(value))
            if reference is not None:
                self._out += reference
            else:
                self._dict(value)
                if id(value) in self._repeated_frames:
                    self._frames[id(value)] = self._put()
        elif isinstance(value, dict):
            self._dict(value)
        elif isinstance(value, float):
            self._out += b"G" + _DOUBLE.pack(value)
        else:
            raise TypeError(f"a flight record holds no {type(value).__name__}")

    def _string(self, value: str) -> None:
        raw = value.encode()
        self._out += b"X" + _UINT32.pack(len(raw)) + raw
        self._strings[value] = self._put()

    def _sequence(self, value: list[object] | tuple[object, ...]) -> None:
        start, slots = len(self._out), self._slots
        if isinstance(value, list):
            self._out += b"]("
            for item in value:
                self._value(item)
            self._out += b"e"
        else:
            for item in value:
                self._value(item)
            self._out += b"\x86"
        if self._slots == slots:
            self._settled[id(value)] = bytes(self._out[start:])

    def _dict(self, value: Mapping[str, object]) -> None:
        self._out += b"}("
        strings = self._strings
        for key, item in value.items():
            reference = strings.get(key)
            if reference is not None:
                self._out += reference
            else:
                self._string(key)
            self._value(item)
        self._out += b"u"


def integer(value: int) -> bytes:
    """The shortest of BININT1, BININT2, BININT and LONG1 that torch chooses for a value."""
    if 0 <= value < 256:
        return b"K%c" % value
    if 0 <= value < 65536:
        return b"M" + _UINT16.pack(value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + _INT32.pack(value)
    return b"\x8a\x08" + _INT64.pack(value)
