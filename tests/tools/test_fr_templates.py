"""Reading entries by templates gives what interpreting them gives: on real, simulated, odd and hostile records."""

from __future__ import annotations

import copy
import pickle
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from constructed_records import NOW_NS, PICKLES, RECORDS, as_pickle, as_torch, dump, entry
from hypothesis import example, given, settings
from hypothesis import strategies as st
from record_invariants import check, interpreted, listed

from ddx_evals.simulator import KINDS as FAULTS
from ddx_evals.simulator import simulate, torch_pickle, write_benchmark
from ddx_evals.simulator.torch_pickle import Frame
from ddx_tools.errors import UnreadableInput
from ddx_tools.formats import fr_pickle
from ddx_tools.formats.fr_dump import read_dump
from ddx_tools.formats.fr_entries import KINDS, NUMERIC
from ddx_tools.store import Store

CORPUS = sorted((Path(__file__).parents[1] / "fuzz" / "corpus").iterdir())


def by_templates(data: bytes) -> int:
    """How many entries templates read."""
    return sum(template.count for template in fr_pickle.scan(data, KINDS, NUMERIC).templates)


def same_both_ways(data: bytes) -> None:
    assert listed(read_dump(data).entries) == interpreted(data)
    top = fr_pickle.load(data)
    assert top == pickle.loads(data)
    assert len(read_dump(data).entries) == len(top["entries"])


# --- records as they are ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PICKLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_real_record_gives_the_same_columns(path: Path) -> None:
    data = path.read_bytes()
    same_both_ways(data)
    again = as_pickle(pickle.loads(data))
    assert by_templates(again) == 0
    assert listed(read_dump(again).entries) == listed(read_dump(data).entries)


@pytest.mark.parametrize("seed", range(24))
def test_a_simulated_record_gives_the_same_columns(seed: int) -> None:
    job = simulate(seed, kind=FAULTS[seed % len(FAULTS)], world_size=8, ring=(64, 500)[seed % 2])
    pickles = [data for data in job.files.values() if data[:1] == b"\x80"]
    for data in random.Random(seed).sample(pickles, min(2, len(pickles))):
        same_both_ways(data)


def test_nearly_all_of_a_long_record_is_read_by_templates(tmp_path: Path) -> None:
    write_benchmark(tmp_path, 8, 300, processes=1)
    data = (tmp_path / "nccl_trace_rank_5").read_bytes()
    same_both_ways(data)
    assert by_templates(data) > 250


def test_a_record_with_times_and_without_them_needs_two_templates() -> None:
    plain = {key: value for key, value in entry().items() if key != "duration_ms"}
    data = as_torch(*[entry(), plain] * 20)
    same_both_ways(data)
    assert by_templates(data) == 38


# --- entries of any kind ----------------------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -1, -(2**31), -(2**31) - 1, 2**63 - 1, -(2**63)]),
    st.integers(-(2**63), 2**63 - 1),
    # An integer whose bytes look like an entry that ends and another one that begins.
    st.binary(min_size=8, max_size=8).map(lambda raw: int.from_bytes(raw, "little", signed=True)),
    st.sampled_from([b"u}(h\x00](", b"e\x86u}(h\x01", b"K\x01K\x02u}(", b"........"]).map(
        lambda raw: int.from_bytes(raw, "little", signed=True)
    ),
)
TEXTS = st.sampled_from(
    ["", "Float", "nccl:send 1->2", "completed", "}(h\x00](eu", "u}(", "]((", "h\x05", "\n" * 300, "é}(u", "#0"]
) | st.text(max_size=6)
FRAMES = [Frame(name=f"f{n}", filename=f"/srv/job/{n % 3}.py", line=n * 100) for n in range(6)]
PLAIN = NUMBERS | TEXTS | st.floats(allow_nan=False)
NESTED = PLAIN | st.lists(PLAIN, max_size=2) | st.tuples(PLAIN, PLAIN)
VALUE = NESTED | st.lists(NESTED, max_size=3) | st.tuples(NESTED, NESTED) | st.dictionaries(TEXTS, NESTED, max_size=2)
SHAPES = st.lists(st.lists(NUMBERS, max_size=3) | NUMBERS, max_size=3)
STACKS = st.lists(st.sampled_from(FRAMES), max_size=5) | st.lists(TEXTS.map(lambda text: Frame(name=text)), max_size=2)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "frames": STACKS,
        "process_group": st.tuples(TEXTS, TEXTS),
        **dict.fromkeys(("profiling_name", "state"), TEXTS),
        **dict.fromkeys(("record_id", "pg_id", "collective_seq_id", "p2p_seq_id", "op_id", "timeout_ms"), NUMBERS),
        **dict.fromkeys(("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns"), NUMBERS),
        **dict.fromkeys(("input_sizes", "output_sizes", "input_split_sizes"), SHAPES),
        **dict.fromkeys(("input_dtypes", "output_dtypes"), st.lists(TEXTS, max_size=3)),
        **dict.fromkeys(("retired", "is_p2p"), st.booleans() | st.none()),
        "duration_ms": st.floats() | NUMBERS,
        "added_in_2.12": VALUE,
    },
)
ODD = st.dictionaries(st.sampled_from([*sorted({*KINDS} - {"frames"}), "thread_name"]), VALUE, max_size=6) | (
    st.fixed_dictionaries({"frames": STACKS | TEXTS}, optional={"record_id": VALUE, "state": VALUE})
)


@st.composite
def entries(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Many entries of a few kinds: some keys gone, some in another place, values changed in any way."""
    found = []
    orders = [draw(st.permutations(list(entry()))), list(entry())]
    for _ in range(draw(st.integers(1, 12))):
        base = entry()
        for key in draw(st.sets(st.sampled_from(list(base)), max_size=2)):
            del base[key]
        order = draw(st.sampled_from(orders))
        ordered = {key: base[key] for key in order if key in base}
        found.append(draw(st.just(ordered) | CHANGES.map(partial(_changed, ordered)) | ODD))
    return found


def _changed(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {**base, **changes}


@given(entries())
@settings(max_examples=150)
def test_entries_of_any_kind_give_the_same_columns(found: list[dict[str, Any]]) -> None:
    data = torch_pickle.encode(dump(*found))
    assert listed(read_dump(data).entries) == interpreted(data)
    assert len(read_dump(data).entries) == len(found)


@given(st.lists(CHANGES, min_size=2, max_size=12))
@settings(max_examples=150)
def test_entries_that_differ_in_some_values_give_the_same_columns(changes: list[dict[str, Any]]) -> None:
    data = as_torch(entry(), *[entry(**each) for each in changes], entry())
    assert listed(read_dump(data).entries) == interpreted(data)


@given(st.lists(ODD, min_size=2, max_size=6))
@example([{"record_id": 1}, {"record_id": 2}])
@example([{"added_in_2.12": 1}, {"added_in_2.12": 2}])
@example([{}, {}])
@example([{"frames": []}, {"frames": []}])
@example([{"duration_ms": None}, {"duration_ms": 1.5}, {"duration_ms": float("nan")}])
def test_entries_of_few_keys_give_the_same_columns(found: list[dict[str, Any]]) -> None:
    data = torch_pickle.encode(dump(*found, *found))
    assert listed(read_dump(data).entries) == interpreted(data)


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        (b"NAMEDESC\x86", b"NAMEDESCN\x87"),  # the group as a tuple of three
        (b"NAMEDESC\x86", b"NAME\x85"),
        (b"NAMEDESC\x86", b"(NAMEDESCK\x01K\x02t"),
        (b"NAMEDESC\x86", b")"),
        (b"NAMEDESC\x86", b"]NAMEa"),  # lists as other picklers write them
        (b"](e", b"]"),
        (b"](e", b"](](eee"),
        (b"}(h", b"}(h\x02K\x01h"),  # a key that was not there before
        (b"K\x07", b"\x8a\x00"),  # 0 without any byte
        (b"K\x07", b"\x8a\x01\x07"),
        (b"u}(", b"u(h\x02K\x01u}("),  # an entry in two parts
    ],
)
def test_what_torch_never_wrote_so_far_is_read_alike_or_refused(written: bytes, instead: bytes) -> None:
    """In each of the later entries, all that is fixed by the first one is written in another way."""
    data = as_torch(*[entry(frames=[], pg_id=200 + n) for n in range(6)])
    references = {value: n for n, value in enumerate(strings_of(data))}
    for word, text in ((b"NAME", "0"), (b"DESC", "default_pg")):
        written = written.replace(word, b"h%c" % references[text])
        instead = instead.replace(word, b"h%c" % references[text])
    first = data.index(written) + len(written)
    assert data.count(written, first) >= 4
    changed = data[:first] + data[first:].replace(written, instead)
    try:
        found = listed(read_dump(changed).entries)
    except UnreadableInput:
        return
    assert found == interpreted(changed)


def strings_of(data: bytes) -> list[str]:
    """The strings of a record of torch in the order of their numbers."""
    found: list[str] = []
    position = 0
    while (position := data.find(b"X", position)) >= 0:
        size = int.from_bytes(data[position + 1 : position + 5], "little")
        text = data[position + 5 : position + 5 + size]
        if data[position + 5 + size : position + 5 + size + 2] == b"q%c" % len(found):
            found.append(text.decode())
            position += 5 + size
        position += 1
    return found


# --- damage and malice ------------------------------------------------------------------------------------------

MANY = as_torch(
    *[
        entry(
            record_id=number,
            frames=FRAMES[: number % 6],
            state=f"state {number}" if number % 7 == 3 else "completed",
            time_created_ns=NOW_NS + number,
        )
        for number in range(20)
    ]
)
REAL = (RECORDS / "no_sync-fault" / "rank_0.pkl").read_bytes()
OPCODES = b"}(]euqrhjKMJNGX\x88\x89\x86\x8a\x94.ast\x85\x87"
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "opcode", "delete", "insert", "copy"]),
        st.integers(2, 100_000),
        st.integers(2, 100_000),
        st.integers(1, 60),
    ),
    min_size=1,
    max_size=4,
)


def edited(data: bytes, edits: list[tuple[str, int, int, int]]) -> bytes:
    out = bytearray(data)
    for how, at, other, size in edits:
        at, other = 2 + at % (len(out) - 2), 2 + other % (len(out) - 2)
        if how == "flip":
            out[at] ^= size
        elif how == "opcode":
            out[at] = OPCODES[other % len(OPCODES)]
        elif how == "delete" and len(out) > 100:
            del out[at : at + size % 12]
        elif how == "insert":
            out[at:at] = OPCODES[other % len(OPCODES) :][:3]
        elif how == "copy":
            out[at:at] = out[other : other + size]
    return bytes(out)


@given(st.sampled_from([MANY, REAL]), EDITS)
@settings(max_examples=500)
def test_a_damaged_record_is_refused_or_read_as_interpreting_reads_it(data: bytes, edits: Any) -> None:
    check(edited(data, edits))


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_what_the_fuzzer_starts_from_keeps_what_is_promised(path: Path) -> None:
    with Store() as store:
        check(path.read_bytes(), store)


def test_entries_given_twice_are_refused_and_not_counted_twice() -> None:
    data = as_torch(*[entry(frames=[])] * 4)
    again = data[: data.rindex(b"u")] + b"X\x07\x00\x00\x00entries](eu."
    with pytest.raises(UnreadableInput, match="takes back entries"):
        read_dump(again)


def test_an_entry_that_is_changed_afterwards_is_refused() -> None:
    data = as_torch(*[entry(frames=[])] * 4)
    changed = data[: data.rindex(b"eu")] + b"X\x05\x00\x00\x00stateX\x01\x00\x00\x00xs" + data[data.rindex(b"eu") :]
    assert fr_pickle.load(changed)["entries"][-1]["state"] == "x"
    with pytest.raises(UnreadableInput, match="what is no dictionary"):
        read_dump(changed)


def test_an_entry_that_others_refer_to_is_interpreted() -> None:
    data = as_torch(*[entry(frames=[], record_id=number) for number in (300, 301, 302)])
    slot = len(strings_of(data))
    cut = data.rindex(b"eu")
    shared = data[:cut] + b"q%ch%c" % (slot, slot) + data[cut:-3] + b"."  # torch remembers the dump itself at the end
    assert listed(read_dump(shared).entries) == interpreted(shared)
    assert len(read_dump(shared).entries) == 4


@pytest.mark.parametrize("keys", [1, 60, 64, 65, 5000])
def test_entries_of_many_keys_make_no_template(keys: int) -> None:
    many = {f"key {number}": number for number in range(keys)}
    data = as_torch({**many, "record_id": 1}, {**many, "record_id": 2})
    assert by_templates(data) == (keys < 64)
    assert read_dump(data).entries.column("record_id") == [1, 2]


def test_entries_of_many_kinds_are_not_all_tried_as_templates() -> None:
    """Each attempt looks at all strings of the record."""
    kinds = [{f"key {number}": {"no": "template"}, "record_id": number} for number in range(50)]
    data = as_torch(*kinds, entry(), entry())
    assert by_templates(data) == 0
    assert len(read_dump(data).entries) == 52


def almost(text: bytes, times: int) -> bytes:
    """A record whose last entry begins like the others, and does not end so."""
    whole = as_torch(*[entry(frames=[], input_sizes=[[1]])] * 3)
    at = whole.rindex(b"](](K\x01ee") + 2
    return whole[:at] + text * times + whole[at:-4]


@pytest.mark.parametrize(
    "text", [b"](K\x01e", b"](e", b"K\x01", b"h\x00", b"j\x00\x00\x00\x00", b"](](K\x01ee", b"J\x00\x00\x00\x00", b"]("]
)
def test_no_value_makes_the_expressions_look_twice(text: bytes) -> None:
    """It would take more than a lifetime if they did."""
    with pytest.raises(UnreadableInput):
        read_dump(almost(text, 100_000))


def test_the_same_entries_are_not_changed_by_who_reads_them() -> None:
    before = copy.deepcopy(dump(entry(), entry()))
    assert fr_pickle.load(torch_pickle.encode(before)) == before
