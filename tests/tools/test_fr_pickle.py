"""The pickle reader reads plain data as pickle does, whoever wrote it, and runs nothing."""

from __future__ import annotations

import copyreg
import io
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from constructed_records import RECORDS, as_torch, entry

from ddx_tools.model.errors import UnreadableInput
from ddx_tools.parsers.flight_records import fr_pickle
from ddx_tools.parsers.flight_records.fr_pickle import load

REAL = (RECORDS / "no_sync-fault" / "rank_0.pkl").read_bytes()
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


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_real_record_is_read_as_pickle_itself_reads_it(protocol: int) -> None:
    expected = pickle.loads(REAL)
    assert load(REAL) == expected
    assert load(pickle.dumps(expected, protocol)) == expected


def test_what_is_shared_stays_shared() -> None:
    shared: list[int] = []
    first, second = load(pickle.dumps([shared, shared], 2))
    assert first is second


def test_a_file_name_of_another_encoding_costs_its_odd_characters_only() -> None:
    data = as_torch(entry(profiling_name="nccl:all_réduce", state="né")).replace("é".encode(), b"\xe9 ")
    (read,) = load(data)["entries"]
    assert (read["profiling_name"], read["state"], read["pg_id"]) == ("nccl:all_r? duce", "n? ", 0)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "hostile",
    [
        Hostile(leave_a_mark),
        Hostile(os.system, "touch /tmp/never"),
        Hostile(getattr, [], "append"),
        {"entries": [entry(), entry(state=Hostile(leave_a_mark)), entry()]},
        {("key", 1): Hostile(exec, "1")},
    ],
    ids=["function", "system", "getattr", "in-entry", "in-dict"],
)
def test_a_pickle_that_calls_something_runs_nothing(hostile: Any, protocol: int) -> None:
    MARKER.clear()
    with pytest.raises(UnreadableInput):
        load(pickle.dumps(hostile, protocol))
    assert MARKER == []


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.", "os.system"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R.", "os.system"),
        (b"\x80\x02(ios\nsystem\n.", "os.system"),
        (b"\x80\x02c\x1b[31mos\nsystem\n.", r"\\x1b\[31mos.system"),
        (with_persistent_id(), "an object outside"),
        (b"\x80\x02Pid\n.", "an object outside"),
    ],
    ids=["GLOBAL", "STACK_GLOBAL", "INST", "escapes", "BINPERSID", "PERSID"],
)
def test_what_reaches_beyond_plain_data_is_refused_and_named(data: bytes, what: str) -> None:
    with pytest.raises(UnreadableInput, match=f"refused: it asks for {what}") as caught:
        load(data)
    assert "None of it was run" in caught.value.help


def test_an_extension_code_that_is_cached_already_gives_no_object() -> None:
    """`find_class` is not asked for cached extensions: a restricted unpickler would not be enough."""
    copyreg.add_extension(__name__, "leave_a_mark", 0xF0)
    try:
        data = b"\x80\x02\x82\xf0)R."
        MARKER.clear()
        pickle.loads(data)
        assert MARKER == ["ran"], "the cache is warm and the attack works on plain pickle"
        MARKER.clear()
        with pytest.raises(UnreadableInput, match="leave_a_mark"):
            load(data)
        assert MARKER == []
    finally:
        copyreg.remove_extension(__name__, "leave_a_mark", 0xF0)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x80\x02]X\x01\x00\x00\x00ab.", "not a readable pickle"),  # BUILD, REDUCE, NEWOBJ … of plain data
        (b"\x80\x02]X\x01\x00\x00\x00aR.", "not a readable pickle"),
        (b"\x80\x02])\x81.", "not a readable pickle"),
        (b"\x80\x04]))\x92.", "not a readable pickle"),
        (b"\x80\x02(]o.", "not a readable pickle"),
        (b"\x80\x02\x83\x01\x00.", "unregistered extension"),
        (b"\x80\x02X" + b"\xff" * 3 + b"\x00x", "truncated"),  # a string longer than the file
        (b"\x80\x02}(]K\x01u.", "unhashable"),
        (b"\x80\x02.", "not a readable pickle"),
        (b"\x80\x02h\x05.", "Memo value not found"),
        (b"\x80\x02K\x01(K\x02e.", "not a readable pickle"),
        (b"\x80\x06N.", "unsupported pickle protocol"),
        (b"\x80\x02\xff.", "invalid load key"),
        (b"\x80\x02(" + b"".join(b"X\x03\x00\x00\x00%02d\xe9" % n for n in range(30)) + b"t.", "not UTF-8"),
        (b"N.", "not a pickle of protocol 2"),
    ],
)
def test_what_no_record_holds_is_refused_in_words(data: bytes, words: str) -> None:
    with pytest.raises(UnreadableInput, match=words):
        load(data)


def test_a_file_beyond_the_size_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fr_pickle, "MAX_BYTES", 100)
    with pytest.raises(UnreadableInput, match="larger than the limit of 100"):
        load(REAL)


def test_every_truncation_of_a_real_record_is_named() -> None:
    for length in range(2, len(REAL)):
        with pytest.raises(UnreadableInput, match="truncated"):
            load(REAL[:length])
