"""What repeats itself, in one record or from rank to rank, is read at once, and as if each record were the only one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from constructed_records import NOW_NS, as_torch, entry
from hypothesis import given, settings
from hypothesis import strategies as st
from record_invariants import interpreted, listed

from ddx_evals.simulator import write_benchmark
from ddx_evals.simulator.torch_pickle import Frame
from ddx_tools.errors import UnreadableInput
from ddx_tools.formats import fr_stencils
from ddx_tools.formats.fr_dump import read_dump
from ddx_tools.formats.fr_rounds import round_length

FRAMES = [Frame(name=f"f{n}", filename=f"/srv/job/{n % 7}.py", line=n * 100) for n in range(40)]


@pytest.fixture(autouse=True)
def _nothing_read_before() -> Iterator[None]:
    fr_stencils._kept.clear()
    yield
    fr_stencils._kept.clear()


def same(data: bytes) -> None:
    assert listed(read_dump(data).entries) == interpreted(data)


def step(number: int, places: list[int], **changed: Any) -> list[dict[str, Any]]:
    """The entries of one round of a program."""
    first = number * len(places)
    return [
        entry(
            frames=FRAMES[place : place + 5],
            record_id=first + at,
            collective_seq_id=first + at,
            time_created_ns=NOW_NS + first + at,
            **changed,
        )
        for at, place in enumerate(places)
    ]


def job(rank: int, rounds: int = 12, **changed: Any) -> bytes:
    """The record of a rank: its groups have names of its own, and its program is that of the others."""
    places = [*range(30), *range(10, 25), *range(30, 35)]
    entries = [each for number in range(rounds) for each in step(number, places, **changed)]
    config = {str(rank + 1): {"name": str(rank + 1), "desc": "mesh_dp", "ranks": f"[{rank}, {rank + 8}]"}}
    return as_torch(*entries, pg_config=config)


# --- rounds -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("places", "length"),
    [
        ("abcdefgh" * 4, 8),
        ("a" * 40, 1),
        ("x" + "abcdefghij" * 2 + "abcdefghijk" * 2, 0),  # known only once all of it came twice
        ("x" + ("abcdefghij" * 2 + "klmnop") * 2, 26),  # a loop within the round
        ("abcdefgh" * 3 + "x", 0),
        ("", 0),
        ("abcdefgh", 0),
    ],
)
def test_a_round_is_what_came_twice_as_a_whole(places: str, length: int) -> None:
    assert round_length(places) == length


@pytest.mark.parametrize("stages", [1, 4])
def test_records_of_many_ranks_are_read_as_if_each_were_the_only_one(tmp_path: Path, stages: int) -> None:
    write_benchmark(tmp_path, 8, 300, processes=1, stages=stages)
    for path in sorted(tmp_path.iterdir())[::2]:
        same(path.read_bytes())


def test_a_round_whose_numbers_grow_is_read_on() -> None:
    same(job(0, rounds=30))


@pytest.mark.parametrize("at", [0, 1, 49, 50, 240, 247, 300])
def test_a_round_that_is_interrupted_is_read_on(at: int) -> None:
    whole = [each for number in range(8) for each in step(number, [*range(30)])]
    odd = entry(frames=FRAMES[33:36], profiling_name="nccl:barrier", state="scheduled", retired=False)
    for changed in ([*whole[:at], odd, *whole[at:]], [*whole[:at], *whole[at + 1 :]], [*whole[:at], {}, *whole[at:]]):
        same(as_torch(*changed))


@given(st.lists(st.sampled_from(["step", "short", "timeless", "other"]), min_size=2, max_size=9))
@settings(max_examples=20)
def test_rounds_in_any_order_are_read(kinds: list[str]) -> None:
    made = {
        "step": lambda number: step(number, [*range(20)]),
        "short": lambda number: step(number, [1, 2, 3]),
        "timeless": lambda number: step(number, [*range(20)], time_discovered_completed_ns=None, duration_ms=None),
        "other": lambda number: step(number, [*range(18), 30, 31]),
    }
    same(as_torch(*[each for number, kind in enumerate(kinds) for each in made[kind](number)]))


# --- from record to record --------------------------------------------------------------------------------------


def test_texts_of_another_rank_are_not_taken_for_those_of_this_one() -> None:
    """The same bytes refer to what each record says by itself."""
    first, second = job(0), job(0).replace(b"nccl:all_reduce", b"nccl:all_gather")
    assert len(first) == len(second)
    for data in (first, second, first):
        same(data)
    frames = job(0).replace(b"/srv/job/3.py", b"/srv/fob/3.py")
    for data in (first, frames, first):
        same(data)


@pytest.mark.parametrize(("here", "there"), [(b"Float", b"Short"), (b"completed", b"scheduled"), (b"mesh_", b"other")])
def test_no_text_that_entries_refer_to_is_taken_from_another_rank(here: bytes, there: bytes) -> None:
    first, second = job(0), job(0).replace(here, there)
    assert len(first) == len(second)
    for data in (first, second, first, second):
        same(data)


def test_a_text_that_another_record_writes_as_a_list_is_no_text_there() -> None:
    """Under the number of a type the second record has something else, which its entries refer to by the same bytes."""
    first = job(0)
    at = first.index(b"X\x05\x00\x00\x00Float")
    second = first[:at] + b"](K\x01K\x02K\x03e" + first[at + 10 :]
    for data in (first, second, first):
        same(data)


def test_a_name_that_frames_refer_to_may_differ_by_rank() -> None:
    """A group is called as a function is: the frame holds a reference to the name of the group."""
    records = []
    for name in ("aaa", "bbb"):
        called = [Frame(name=name, filename="/srv/a.py", line=1), *FRAMES[:3]]
        config = {"0": {"name": name, "desc": "default_pg", "ranks": "[0, 1]"}}
        entries = [entry(frames=called if n % 2 else FRAMES[n % 5 :], record_id=n) for n in range(60)]
        records.append(as_torch(*entries, pg_config=config))
    for data in (*records, *records):
        same(data)


def test_a_record_that_changes_its_frames_changes_those_of_no_other() -> None:
    whole = job(0)
    before = listed(read_dump(whole).entries)
    # Behind the entries, the value of another key: a known frame, with another name.
    frame = next(n for n in range(20, 256) if b"uq%c" % n in whole)
    end = whole.rindex(b"u")
    change = b"X\x01\x00\x00\x00vh%c(X\x04\x00\x00\x00nameX\x04\x00\x00\x00evilu" % frame
    hostile = whole[:end] + change + whole[end:]
    found = listed(read_dump(hostile).entries)
    assert found == interpreted(hostile) != before
    assert any("evil" in repr(each) for each in found)
    assert listed(read_dump(whole).entries) == before == interpreted(whole)


def test_a_damaged_record_leaves_nothing_behind() -> None:
    whole = job(3, rounds=2)
    before = interpreted(whole)
    shuffled = random.Random(1)
    for _ in range(40):
        at = shuffled.randrange(2, len(whole))
        damaged = whole[:at] + bytes([shuffled.randrange(256)]) + whole[at + 1 :]
        try:
            found = listed(read_dump(damaged).entries)
        except UnreadableInput:
            continue
        finally:
            assert listed(read_dump(whole).entries) == before
        assert found == interpreted(damaged)


def test_what_is_kept_for_other_records_is_bounded() -> None:
    for rank in range(12):
        config = {"0": {"name": "0", "desc": "x" * rank, "ranks": "[0]", **{f"key {n}": "" for n in range(rank)}}}
        same(as_torch(*step(0, [*range(30)]), pg_config=config))
    assert len(fr_stencils._kept) <= 4
    read_dump(as_torch(*[entry(frames=[], input_sizes=[[n] * 40]) for n in range(5000)]))
    assert all(len(shapes.stencils) < 5000 for shapes in fr_stencils._kept.values())
