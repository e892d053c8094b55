"""Entries as columns say what each entry says by itself: of real, simulated, odd and damaged records."""

from __future__ import annotations

import json
import pickle
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from constructed_records import NOW_NS, PICKLES, RECORDS, as_pickle, as_torch, dump, entry
from hypothesis import example, given, settings
from hypothesis import strategies as st
from record_invariants import check, listed, one_by_one

from ddx_evals.simulator import KINDS as FAULTS
from ddx_evals.simulator import simulate
from ddx_evals.simulator.formats.torch_pickle import PickledFrame
from ddx_tools.evidence.store import Store
from ddx_tools.parsers.flight_records.fr_dump import read_dump
from ddx_tools.parsers.flight_records.fr_origin import DumpOrigin
from ddx_tools.probes.flight_recorder.decode import DumpMaterial
from ddx_tools.probes.flight_recorder.decode_all import decode_all

pytestmark = pytest.mark.slow

CORPUS = sorted((Path(__file__).parents[1] / "fuzz" / "corpus").iterdir())
REAL = (RECORDS / "no_sync-fault" / "rank_0.pkl").read_bytes()


def same(data: bytes) -> None:
    """Whoever writes a record: the columns are those of its entries."""
    top = pickle.loads(data)
    expected = one_by_one(top["entries"])
    assert len(expected) == len(top["entries"])
    for each in (data, as_pickle(top), pickle.dumps(top, 2), pickle.dumps(top, 4)):
        assert listed(read_dump(each).entries) == expected


# --- records as they are ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PICKLES[::4], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_real_record_gives_the_columns_of_its_entries(path: Path) -> None:
    same(path.read_bytes())


@pytest.mark.parametrize("seed", range(6))
def test_a_simulated_record_gives_the_columns_of_its_entries(seed: int) -> None:
    job = simulate(seed, kind=FAULTS[seed % len(FAULTS)], world_size=8, ring=(64, 500)[seed % 2])
    pickles = [data for data in job.files.values() if data[:1] == b"\x80"]
    same(random.Random(seed).choice(pickles))


def test_a_list_of_frames_that_entries_share_is_their_path() -> None:
    """As tools write them that merge or anonymise records; torch writes a list for each entry."""
    path = [{"name": f"f{n}", "filename": "/srv/a.py", "line": n} for n in range(5)]
    top = dump(*[entry(frames=path if n % 3 else path[1:], record_id=n) for n in range(9)])
    for protocol in (2, 4, 5):
        columns = read_dump(pickle.dumps(top, protocol)).entries
        assert listed(columns) == one_by_one(top["entries"])
        assert len(columns.sites) == 2


# --- entries of any kind ----------------------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, 255, 65536, 2**31, -1, -(2**31) - 1, 2**63 - 1, -(2**63)]),
    st.integers(-(2**63), 2**63 - 1),
)
TEXTS = st.sampled_from(["", "7", "Float", "nccl:send 1->2", "completed", "\n" * 300]) | st.text(max_size=6)
FRAMES = [PickledFrame(name=f"f{n}", filename=f"/srv/job/{n % 3}.py", line=n * 100) for n in range(6)]
PLAIN = NUMBERS | TEXTS | st.floats(allow_nan=False)
NESTED = PLAIN | st.lists(PLAIN, max_size=2) | st.tuples(PLAIN, PLAIN)
VALUE = NESTED | st.lists(NESTED, max_size=3) | st.tuples(NESTED, NESTED) | st.dictionaries(TEXTS, NESTED, max_size=2)
SHAPES = st.lists(st.lists(NUMBERS, max_size=3) | NUMBERS, max_size=3)
STACKS = st.lists(st.sampled_from(FRAMES), max_size=5) | st.lists(
    TEXTS.map(lambda text: PickledFrame(name=text)), max_size=2
)
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
        "duration_ms": st.floats(allow_nan=False) | NUMBERS,
        "added_in_2.12": VALUE,
    },
)
ODD = st.dictionaries(st.sampled_from([*sorted(entry()), "thread_name"]), VALUE, max_size=6)


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


@pytest.mark.slow
@given(entries() | st.lists(ODD, max_size=6) | st.lists(CHANGES.map(partial(_changed, entry())), max_size=12))
@example([{"record_id": 1}, {"record_id": 2}])
@example([{"added_in_2.12": 1}, {"added_in_2.12": 2}])
@example([{}, {}])
@example([{"frames": []}, {"frames": []}])
@example([{"frames": "ab"}, {"frames": ["a", "b"]}, {"frames": [{"filename": []}]}])
@example([{"duration_ms": None}, {"duration_ms": 1.5}, {"duration_ms": True}])
@settings(max_examples=150)
def test_entries_of_any_kind_give_their_columns(found: list[dict[str, Any]]) -> None:
    for protocol in (2, 5):
        assert listed(read_dump(as_pickle(dump(*found), protocol)).entries) == one_by_one(found)


def test_entries_that_are_equal_and_of_other_types_are_not_mixed_up() -> None:
    odd = [entry(is_p2p=1), entry(is_p2p=True), entry(input_sizes=[[1.0]]), entry(input_sizes=[[1]])]
    columns = read_dump(json.dumps(dump(*odd)).encode()).entries
    assert [columns.calls[columns.kinds[kind].call].is_p2p for kind in columns.kind] == [False, True, False, False]
    assert [columns.calls[columns.kinds[kind].call].input_sizes for kind in columns.kind[2:]] == ["[[0]]", "[[1]]"]


def test_a_number_that_no_column_holds_is_unknown() -> None:
    columns = read_dump(as_pickle(dump(entry(op_id=2**63, duration_ms=10**400), entry(op_id=5, duration_ms=2)))).entries
    assert (columns.column("op_id"), columns.durations()) == ([None, 5], [None, 2.0])


def test_more_frames_than_a_path_has_are_left_out() -> None:
    frames = [PickledFrame(name=f"f{n}", filename="/srv/a.py", line=n) for n in range(300)]
    columns = read_dump(as_torch(entry(frames=frames))).entries
    assert [len(path) for path in columns.sites] == [200]


# --- damage and malice ------------------------------------------------------------------------------------------

MANY = as_torch(*[entry(record_id=n, frames=FRAMES[: n % 6], time_created_ns=NOW_NS + n) for n in range(20)])
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


@pytest.mark.slow
@given(st.binary(max_size=400).map(b"\x80\x02".__add__) | st.builds(edited, st.sampled_from([MANY, REAL]), EDITS))
@settings(max_examples=300)
def test_a_damaged_record_is_refused_or_read(data: bytes) -> None:
    (found,) = decode_all([DumpMaterial("damaged", DumpOrigin("x", "file", 0), data)])
    assert len(found.tables.dumps) + len(found.problems) == 1


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_what_the_fuzzer_starts_from_keeps_what_is_promised(path: Path) -> None:
    with Store() as store:
        check(path.read_bytes(), store)
