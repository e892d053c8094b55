"""The pickle reader runs nothing, refuses what is not a flight record, and stays within its limits."""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import pickletools
import struct
from collections.abc import Callable
from typing import Any

import pytest
from constructed_records import PICKLES, RECORDS, as_torch, entry
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ddx_tools.errors import UnreadableInput
from ddx_tools.formats import fr_pickle
from ddx_tools.formats.fr_entries import KINDS, NUMERIC

REAL = (RECORDS / "no_sync-fault" / "rank_0.pkl").read_bytes()

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(), inner) | st.lists(inner, max_size=5).map(tuple)  # 0 to 3: opcodes
    ),
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


def read_both_ways(data: bytes) -> None:
    """What is no record has to be refused, in words."""
    for read in (fr_pickle.load, lambda data: fr_pickle.scan(data, KINDS, NUMERIC)):
        try:
            read(data)
        except UnreadableInput as error:
            assert error.message


# --- plain data -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PICKLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_real_record_is_read_as_pickle_itself_reads_it(path: Any) -> None:
    data = path.read_bytes()
    assert fr_pickle.load(data) == pickle.loads(data)


@given(PLAIN, st.integers(2, 5))
def test_plain_data_is_read_in_every_protocol(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    assert fr_pickle.load(data) == value
    assert fr_pickle.load(pickletools.optimize(data)) == value


def test_what_is_shared_stays_shared() -> None:
    shared: list[int] = []
    first, second = fr_pickle.load(pickle.dumps([shared, shared], 2))
    assert first is second


def test_a_file_name_of_another_encoding_costs_its_odd_characters_only() -> None:
    data = as_torch(entry(profiling_name="nccl:all_réduce")).replace("é".encode(), b"\xe9 ")
    assert fr_pickle.load(data)["entries"][0]["profiling_name"] == "nccl:all_r� duce"


# --- nothing runs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "hostile",
    [
        Hostile(leave_a_mark),
        Hostile(os.system, "touch /tmp/never"),
        Hostile(eval, "leave_a_mark()"),
        Hostile(getattr, [], "append"),
        {"entries": [Hostile(leave_a_mark)]},
        {"entries": [entry(), entry(state=Hostile(leave_a_mark)), entry()]},
        {("key", 1): Hostile(exec, "1")},
    ],
    ids=["function", "system", "eval", "getattr", "inside", "in-entry", "in-dict"],
)
def test_a_pickle_that_calls_something_runs_nothing(hostile: Any, protocol: int) -> None:
    data = pickle.dumps(hostile, protocol)
    MARKER.clear()
    with pytest.raises(UnreadableInput):
        fr_pickle.load(data)
    with pytest.raises(UnreadableInput):
        fr_pickle.scan(data, KINDS, NUMERIC)
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
        (b"\x80\x04]))\x92.", "NEWOBJ_EX"),
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
    """`find_class` is not asked for cached extensions: a restricted unpickler would not be enough."""
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


# --- limits -----------------------------------------------------------------------------------------------------


def pairs_of_pairs(depth: int) -> bytes:
    """A tuple of two that are one, `depth` times: hashing it takes 2 ** depth steps."""
    return b"K\x01" + b"".join(b"q%ch%c\x86" % (slot, slot) for slot in range(depth))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x80\x02]r" + struct.pack("<I", 0xFFFFFFF0) + b".", "damaged: value 4294967280"),  # would allocate 64 GiB
        (b"\x80\x02]q\x00K\x01q\x00.", "damaged: value 0 follows value 0"),  # a slot for a second time
        (b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x.", "damaged at byte 2"),  # BINUNICODE8
        (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"x.", "damaged at byte 2"),  # BINBYTES8
        (b"\x80\x05\x96" + struct.pack("<Q", 1 << 60) + b"x.", "damaged at byte 2"),  # BYTEARRAY8
        (b"\x80\x02X" + struct.pack("<I", 0xFFFFFFFF) + b"x", "truncated"),  # a string longer than the file
        (b"\x80\x02\x8b" + struct.pack("<i", 0x7FFFFFFF) + b"x.", "damaged at byte 2"),  # LONG4
        (b"\x80\x02\x8a\xff" + b"\xff" * 255 + b".", "an integer of 255 bytes"),
        (b"\x80\x02}(K\x01" + b"\x85" * 1_000_000 + b"K\x01u.", "keys are no text"),  # hashing would end the process
        (b"\x80\x02}(" + pairs_of_pairs(100) + b"K\x01u.", "keys are no text"),  # hashing would take for ever
        (b"\x80\x02}(K\x01K\x02u.", "keys are no text"),  # numbers can be made to collide
        (b"\x80\x02}(X\x01\x00\x00\x00au.", "keys are no text"),  # a key without a value
        (b"\x80\x02](.", "ends within a list"),
        (b"\x80\x02]].", "leaves 2 values"),
        (b"\x80\x02.", "leaves 0 values"),
        (b"\x80\x02h\x05.", "a value that it never gave"),
        (b"\x80\x02K\x01e.", "a value that it never gave"),
        (b"\x80\x02K\x01(K\x02e.", "what is no list"),
        (b"\x80\x02](K\x01K\x02u.", "what is no dictionary"),
        (b"\x80\x06N.", "unknown pickle protocol 6"),
        (b"N.", "not a pickle of protocol 2"),
    ],
)
def test_what_no_record_holds_is_refused_in_words(data: bytes, words: str) -> None:
    with pytest.raises(UnreadableInput, match=words):
        fr_pickle.load(data)


def test_lists_in_lists_in_lists_cost_no_recursion() -> None:
    depth = 100_000
    value = fr_pickle.load(b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b".")
    assert len(value) == 1


def test_tuples_in_tuples_in_tuples_cost_no_recursion() -> None:
    assert len(fr_pickle.load(b"\x80\x02)" + b"\x85" * 100_000 + b".")) == 1


def test_a_value_that_shares_itself_exponentially_costs_what_it_takes_to_write() -> None:
    laughs = b"\x80\x02]q\x00" + b"".join(b"](" + b"h%c" % n * 10 + b"eq%c" % (n + 1) for n in range(200))
    with pytest.raises(UnreadableInput, match="leaves 201 values"):
        fr_pickle.load(laughs + b".")


def test_a_file_beyond_the_size_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fr_pickle, "MAX_BYTES", 100)
    with pytest.raises(UnreadableInput, match="larger than the 100"):
        fr_pickle.load(REAL)


def test_operations_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fr_pickle, "MAX_OPERATIONS", 1000)
    with pytest.raises(UnreadableInput, match="more than 1000 operations"):
        fr_pickle.load(b"\x80\x02" + b"]" * 1001 + b".")


def test_entries_are_counted_however_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fr_pickle, "MAX_ENTRIES", 100)
    assert fr_pickle.scan(as_torch(*[entry()] * 100), KINDS, NUMERIC).templates[0].count
    with pytest.raises(UnreadableInput, match="more than 100 entries"):
        fr_pickle.scan(as_torch(*[entry()] * 102), KINDS, NUMERIC)


# --- damage -----------------------------------------------------------------------------------------------------


def test_every_truncation_of_a_real_record_is_named() -> None:
    for length in range(len(REAL)):
        with pytest.raises(UnreadableInput):
            fr_pickle.scan(REAL[:length], KINDS, NUMERIC)


@given(st.binary(max_size=400))
@example(b"")
@example(b"\x80\x02.")
def test_random_bytes_raise_nothing_unexpected(data: bytes) -> None:
    read_both_ways(data)


OPCODES = [
    *(b"N", b"\x88", b"\x89", b"K\x07", b"M\x01\x02", b"J\xff\xff\xff\xff", b"\x8a\x01\x05", b"\x8a\x00"),
    *(b"G" + bytes(8), b"X\x01\x00\x00\x00a", b"\x8c\x07entries", b"X\x02\x00\x00\x00\xc3\xa9", b")", b"]", b"}", b"("),
    *(b"e", b"u", b"a", b"s", b"t", b"\x85", b"\x86", b"\x87", b"\x94", b"h\x00", b"h\x01", b"j\x00\x00\x00\x00"),
    *(b"q\x00", b"q\x01", b"q\x02", b"r\x00\x00\x00\x00", b"\x95" + bytes(8)),
]


@given(st.lists(st.sampled_from(OPCODES), max_size=14).map(b"".join))
@settings(max_examples=1000)
def test_random_programs_mean_what_they_mean_to_pickle(program: bytes) -> None:
    """The opcodes can only build data, so pickle may run them, too. What is left on the stack is put into a tuple."""
    data = b"\x80\x04(" + program + b"t."
    read_both_ways(data)
    try:
        mine = fr_pickle.load(data)
        theirs = pickle.loads(data)
    except (UnreadableInput, pickle.UnpicklingError, TypeError, EOFError, IndexError):
        return
    assert repr(mine) == repr(theirs)  # `==` gives up on a list that holds itself


@given(st.lists(st.tuples(st.integers(0, len(REAL) - 1), st.integers(1, 255)), min_size=1, max_size=4))
@settings(max_examples=300)
def test_flipped_bytes_raise_nothing_unexpected(flips: list[tuple[int, int]]) -> None:
    data = bytearray(REAL)
    for position, mask in flips:
        data[position] ^= mask
    read_both_ways(bytes(data))
