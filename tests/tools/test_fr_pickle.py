"""The pickle reader runs nothing, refuses what is not a flight record, and stays within its limits."""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ddx_tools.errors import UnreadableInput
from ddx_tools.formats import fr_pickle

RECORDS = Path(__file__).parents[1] / "fixtures" / "flight_records"
REAL = (RECORDS / "no_sync-fault" / "rank_0.pkl").read_bytes()

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=30,
)

MARKER: list[str] = []


def leave_a_mark(text: str = "ran") -> None:
    """What a hostile pickle would like to call."""
    MARKER.append(text)


class Hostile:
    """Pickles as a call of `function`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.reduced


class WithPersistentId(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return "id" if isinstance(obj, Hostile) else None


def with_persistent_id() -> bytes:
    out = io.BytesIO()
    WithPersistentId(out, 2).dump([Hostile(print)])
    return out.getvalue()


def test_a_real_record_is_read_as_pickle_itself_reads_it() -> None:
    assert fr_pickle.load(REAL) == pickle.loads(REAL)


@given(PLAIN, st.integers(2, 5))
def test_plain_data_is_read_in_every_protocol(value: Any, protocol: int) -> None:
    assert fr_pickle.load(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "hostile",
    [
        Hostile(leave_a_mark),
        Hostile(os.system, "touch /tmp/never"),
        Hostile(eval, "leave_a_mark()"),
        Hostile(getattr, [], "append"),
        {"entries": [Hostile(leave_a_mark)]},
        {("key", 1): Hostile(exec, "1")},
    ],
    ids=["function", "system", "eval", "getattr", "inside", "in-dict"],
)
def test_a_pickle_that_calls_something_runs_nothing(hostile: Any, protocol: int) -> None:
    data = pickle.dumps(hostile, protocol)
    MARKER.clear()
    with pytest.raises(UnreadableInput):
        fr_pickle.load(data)
    assert MARKER == []


@pytest.mark.parametrize(
    ("data", "opcode"),
    [
        (b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.", "GLOBAL"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R.", "STACK_GLOBAL"),
        (b"\x80\x02(ios\nsystem\n.", "INST"),
        (b"\x80\x02]X\x01\x00\x00\x00ab.", "BUILD"),
        (b"\x80\x02]X\x01\x00\x00\x00aR.", "REDUCE"),
        (b"\x80\x02])\x81.", "NEWOBJ"),
        (b"\x80\x02(]o.", "OBJ"),
        (with_persistent_id(), "BINPERSID"),
        (b"\x80\x02Pid\n.", "PERSID"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x02\x83\x01\x00.", "EXT2"),
        (b"\x80\x02\x84\x01\x00\x00\x00.", "EXT4"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_opcode_that_reaches_beyond_plain_data_is_named(data: bytes, opcode: str) -> None:
    with pytest.raises(UnreadableInput, match=rf"refused: {opcode} at byte \d+") as caught:
        fr_pickle.load(data)
    assert "Nothing of it was loaded" in caught.value.help


def test_an_extension_code_that_is_cached_already_gives_no_object() -> None:
    """`find_class` is not asked for cached extensions: only the check of the opcodes stands before them."""
    copyreg.add_extension(__name__, "leave_a_mark", 0xF0)
    try:
        data = b"\x80\x02\x82\xf0)R."
        MARKER.clear()
        pickle.loads(data)
        assert MARKER == ["ran"], "the cache is warm and the attack works on plain pickle"
        MARKER.clear()
        with pytest.raises(UnreadableInput, match="EXT1"):
            fr_pickle.load(data)
        assert MARKER == []
    finally:
        copyreg.remove_extension(__name__, "leave_a_mark", 0xF0)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02]r" + struct.pack("<I", 0xFFFFFFF0) + b".",  # a memo slot that would allocate 64 GiB
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x.",  # BINUNICODE8
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"x.",  # BINBYTES8
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 60) + b"x.",  # BYTEARRAY8
        b"\x80\x02X" + struct.pack("<I", 0xFFFFFFFF) + b"x.",  # a string longer than the file
        b"\x80\x02\x8b" + struct.pack("<i", 0x7FFFFFFF) + b"x.",  # LONG4
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b".",  # FRAME
        b"\x80\x02}(K\x01" + b"\x85" * 1_000_000 + b"K\x01u.",  # hashing it would crash the interpreter
        b"\x80\x02" + b"]" * (fr_pickle.MAX_CONTAINERS + 1) + b".",
    ],
    ids=["memo", "unicode8", "bytes8", "bytearray8", "unicode", "long4", "frame", "nested-key", "many-lists"],
)
def test_what_would_exhaust_memory_or_the_stack_is_refused(data: bytes) -> None:
    with pytest.raises(UnreadableInput):
        fr_pickle.load(data)


def test_the_deepest_nesting_within_the_limit_can_be_hashed() -> None:
    data = b"\x80\x02}(K\x01" + b"\x85" * (fr_pickle.MAX_TUPLES - 1) + b"K\x02u."
    assert list(fr_pickle.load(data).values()) == [2]


def test_lists_in_lists_in_lists_cost_no_recursion() -> None:
    depth = 100_000
    value = fr_pickle.load(b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b".")
    assert len(value) == 1


def test_a_file_beyond_the_size_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fr_pickle, "MAX_BYTES", 100)
    with pytest.raises(UnreadableInput, match="larger than the 100"):
        fr_pickle.load(REAL)


@given(st.integers(0, len(REAL) - 1))
@settings(max_examples=300)
def test_every_truncation_of_a_real_record_is_named(length: int) -> None:
    with pytest.raises(UnreadableInput):
        fr_pickle.load(REAL[:length])


@given(st.binary(max_size=400))
@example(b"")
@example(b"\x80\x02.")
def test_random_bytes_raise_nothing_unexpected(data: bytes) -> None:
    try:
        fr_pickle.load(data)
    except UnreadableInput as error:
        assert error.message


@given(st.binary(max_size=60))
def test_random_programs_raise_nothing_unexpected(program: bytes) -> None:
    try:
        fr_pickle.load(b"\x80\x02" + program + b".")
    except UnreadableInput as error:
        assert error.message


@given(st.lists(st.tuples(st.integers(0, len(REAL) - 1), st.integers(1, 255)), min_size=1, max_size=4))
@settings(max_examples=300)
def test_flipped_bytes_raise_nothing_unexpected(flips: list[tuple[int, int]]) -> None:
    data = bytearray(REAL)
    for position, mask in flips:
        data[position] ^= mask
    try:
        fr_pickle.load(bytes(data))
    except UnreadableInput as error:
        assert error.message
