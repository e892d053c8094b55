"""The flame graph for speedscope: equal stacks once, as wide as their ranks, in the form that its format prescribes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ddx_tools.evidence.store import Store
from ddx_tools.probes.stacks.speedscope import flame_graph_of

FRAMES = [("all_reduce", "/site/torch/distributed/distributed_c10d.py", 3252), ("step", "/srv/train.py", 40)]


def stored(store: Store, rank: int | None, function: str = "step", *, tid: int = 1, snapshot: int = 1) -> None:
    """Add a thread of two frames; thread 1 is the main one."""
    pid = 100 + (rank if rank is not None else 99)
    here = {"host": "node", "pid": pid, "snapshot": snapshot, "tid": tid}
    frames = [
        here | {"depth": depth, "function": function if depth else name, "file": file, "line": line}
        for depth, (name, file, line) in enumerate(FRAMES)
    ]
    threads = [here | {"rank": rank, "role": "rank", "is_main": tid == 1}]
    store.insert({"stack_threads": threads, "stack_frames": frames})


def read(store: Store) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(b"".join(flame_graph_of(store, [])))
    return told


def stacks_of(told: dict[str, Any], number: int = 0) -> list[tuple[list[str], int]]:
    names = [frame["name"] for frame in told["shared"]["frames"]]
    profile = told["profiles"][number]
    return [
        ([names[each] for each in sample], weight)
        for sample, weight in zip(profile["samples"], profile["weights"], strict=True)
    ]


def test_equal_stacks_are_one_as_wide_as_their_ranks() -> None:
    with Store() as store:
        for rank in (0, 1, 3):
            stored(store, rank)
        stored(store, 2, "save")
        told = read(store)
    assert stacks_of(told) == [
        (["step", "all_reduce", "ranks 0-1, 3"], 3),
        (["save", "all_reduce", "rank 2"], 1),
    ]
    assert told["profiles"][0]["endValue"] == 4
    assert told["shared"]["frames"][0] == {"name": "step", "file": "/srv/train.py", "line": 40}


def test_other_threads_are_a_profile_of_their_own_and_only_the_last_sample_counts() -> None:
    with Store() as store:
        stored(store, 0, "load")
        stored(store, 0, "step", snapshot=2)
        stored(store, 0, "write_logs", tid=2, snapshot=2)
        told = read(store)
    assert [profile["name"] for profile in told["profiles"]] == ["Main threads", "Other threads"]
    assert stacks_of(told) == [(["step", "all_reduce", "rank 0"], 1)]
    assert stacks_of(told, 1) == [(["write_logs", "all_reduce", "rank 0"], 1)]


@pytest.mark.parametrize("hostile", ["\x1b[31m", "\u202e", "a\nb", "</script>"])
def test_names_out_of_a_job_stay_text(hostile: str) -> None:
    with Store() as store:
        stored(store, None, hostile)
        told = read(store)
    ((names, _),) = stacks_of(told)
    assert names[-1] == "a rank of unknown number"
    assert not set("\x1b\u202e\n") & set(names[0])


def test_the_file_is_what_the_format_prescribes() -> None:
    """The keys that speedscope's file-format-spec.ts requires."""
    with Store() as store:
        stored(store, 0)
        told = read(store)
    assert told["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    (profile,) = told["profiles"]
    assert {"type", "name", "unit", "startValue", "endValue", "samples", "weights"} <= set(profile)
    assert (profile["type"], len(profile["samples"])) == ("sampled", len(profile["weights"]))
