"""Simulated jobs: their dumps are what torch would write, and their truth is consistent with them."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from _pytest.mark.structures import ParameterSet

from ddx_evals.simulator import KINDS, SimulatedJob, degrade, simulate, write, write_benchmark

Record: TypeAlias = dict[str, Any]

RING = 2000
"""Larger than any simulated history: nothing is overwritten."""


def seeds(few: int, many: int) -> list[ParameterSet]:
    """So many seeds at every commit, so many in the long matrix."""
    return [pytest.param(seed, marks=[pytest.mark.long] if seed >= few else []) for seed in range(many)]


STAND_STILL = sorted({"rank_stalled", "rank_dead", "rank_exited_early"})


@cache
def job(kind: str, seed: int = 1, world_size: int = 8) -> SimulatedJob:
    return simulate(seed, kind=kind, world_size=world_size, ring=RING, lost=0.0)


def dumps(of: SimulatedJob) -> dict[int, Record]:
    """Rank to dump, by Python's own readers."""
    found = {}
    for name, content in of.files.items():
        if not name.endswith(".header.json"):
            rank = re.search(r"(\d+)(\.pkl|\.json)?$", name)
            assert rank is not None
            found[int(rank[1])] = json.loads(content) if name.endswith(".json") else pickle.loads(content)
    return found


def entries(dump: Record) -> list[Record]:
    listed: list[Record] = dump.get("entries", [])
    return listed


def pending(dump: Record) -> list[Record]:
    """What has events and did not complete: transfers of a batch have none."""
    closing = {(e["pg_id"], e["p2p_seq_id"]) for e in entries(dump) if e["profiling_name"].endswith(":coalesced")}
    return [
        entry
        for entry in entries(dump)
        if entry["state"] != "completed"
        and not entry["retired"]
        and not (entry["is_p2p"] and (entry["pg_id"], entry["p2p_seq_id"]) in closing)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_leaves_dumps_and_a_truth_that_agrees_with_itself(kind: str) -> None:
    made = job(kind)
    truth, ranks = made.truth, set(dumps(made))
    assert truth.kind == kind
    assert set(truth.culprits).isdisjoint(truth.victims)
    assert set(truth.culprits) | set(truth.victims) <= set(range(8))
    missing = made.description["no_dump_of"]
    assert isinstance(missing, list)
    assert set(range(8)) - ranks == set(missing)
    assert made.taken_ns.keys() == made.files.keys()
    if kind == "healthy":
        assert (truth.culprits, truth.victims, truth.causes, truth.verdict) == ((), (), (), "healthy")
    else:
        assert truth.causes
    if not truth.determinable:
        assert truth.undecided_accepted


@pytest.mark.parametrize("kind", ["healthy", "rank_stalled", "wrong_splits"])
def test_a_seed_is_a_job(kind: str) -> None:
    first, again = (simulate(7, kind=kind, world_size=8) for _ in range(2))
    assert first == again
    assert first.files != simulate(8, kind=kind, world_size=8).files


def test_a_seed_alone_chooses_kind_and_backend() -> None:
    chosen = [simulate(seed, world_size=8) for seed in range(8)]
    assert len({made.truth.kind for made in chosen}) > 4
    assert len({made.description["backend"] for made in chosen}) > 1


def test_an_unknown_kind_and_a_fault_without_a_place_are_refused() -> None:
    with pytest.raises(ValueError, match="no fault of kind 'gremlins'"):
        simulate(0, kind="gremlins")
    with pytest.raises(ValueError, match="no kernel_hang with Gloo"):
        simulate(0, kind="kernel_hang", gloo=True)
    with pytest.raises(ValueError, match="no place for wrong_splits"):
        simulate(0, kind="wrong_splits", world_size=3)


@pytest.mark.parametrize("seed", seeds(2, 12))
def test_members_of_a_group_agree_about_every_collective_of_a_healthy_job(seed: int) -> None:
    made = simulate(seed, kind="healthy", world_size=(8, 12, 16, 32)[seed % 4], ring=RING, lost=0.0)
    seen: dict[tuple[object, ...], set[tuple[object, ...]]] = defaultdict(set)
    for dump in dumps(made).values():
        for entry in entries(dump):
            name = entry["profiling_name"]
            if "all_to_all" in name or "gather" in name or entry["is_p2p"] or name.endswith(":coalesced"):
                continue
            group = entry["process_group"][0]
            what = (name, str(entry["input_sizes"]), str(entry["output_sizes"]), str(entry["input_dtypes"]))
            seen[group, entry["collective_seq_id"]].add(what)
    assert seen
    assert all(len(what) == 1 for what in seen.values())


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_sends_and_receives_of_a_healthy_job_pair_up(seed: int) -> None:
    made = simulate(seed, kind="healthy", world_size=8, gloo=False, ring=RING, lost=0.0)
    moved: dict[tuple[object, ...], tuple[list[object], list[object]]] = defaultdict(lambda: ([], []))
    for dump in dumps(made).values():
        for entry in entries(dump):
            found = re.search(r":(send|recv) (\d+)(->|<-)(\d+)$", entry["profiling_name"])
            if found is None:
                continue
            mine, peer = int(found[2]), int(found[4])
            group = entry["process_group"][0]
            receives = found[1] == "recv"
            pair = (group, peer, mine) if receives else (group, mine, peer)
            moved[pair][receives].append(entry["input_sizes"])
    # Dumps of a job that runs on are moments apart: one side is ahead.
    assert all(sent[: len(received)] == received[: len(sent)] for sent, received in moved.values())


@pytest.mark.parametrize("kind", STAND_STILL)
@pytest.mark.parametrize("seed", seeds(1, 5))
def test_a_rank_that_stays_away_has_nothing_pending_while_its_victims_wait(kind: str, seed: int) -> None:
    attempts = (simulate(each, kind=kind, world_size=8, gloo=False, ring=RING, lost=0.0) for each in count(100 * seed))
    made = next(each for each in attempts if each.truth.determinable and not each.description["only_active"])
    found = dumps(made)
    assert set(made.truth.victims) == set(range(8)) - set(made.truth.culprits)
    assert all(pending(found[victim]) for victim in made.truth.victims)
    assert not any(pending(found[culprit]) for culprit in made.truth.culprits if culprit in found)


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_another_operation_stands_against_that_of_the_peers(seed: int) -> None:
    made = simulate(seed, kind="wrong_operation", world_size=16, ring=RING, lost=0.0)
    (culprit,) = made.truth.culprits
    found = dumps(made)
    theirs = [e for e in pending(found[culprit]) if e["process_group"][0] == made.truth.group]
    first = theirs[0]
    peers = {
        entry["profiling_name"]
        for rank, dump in found.items()
        if rank != culprit
        for entry in entries(dump)
        if list(entry["process_group"]) == list(first["process_group"])
        and entry["collective_seq_id"] == first["collective_seq_id"]
        and not entry["is_p2p"]
    }
    assert len(peers) == 1
    assert first["profiling_name"] not in peers


def test_started_is_seen_only_with_timing() -> None:
    seen: dict[object, set[object]] = defaultdict(set)
    for seed in range(4):
        made = simulate(seed, kind="kernel_hang", world_size=8, ring=RING, lost=0.0)
        states = {entry["state"] for dump in dumps(made).values() for entry in entries(dump)}
        seen[made.description["timing"]] |= states
    assert "started" in seen[True]
    assert "started" not in seen[False]


def test_a_gpu_that_stands_still_is_told_from_the_network_only_where_starts_are_seen() -> None:
    found = {}
    for seed in (1, 4):
        made = simulate(seed, kind="gpu_stuck", world_size=8, ring=RING, lost=0.0)
        if made.description["occasion"] == "timeout":
            found[made.description["timing"]] = made.truth
    assert found[True].verdict == "diagnosed"
    assert (found[False].verdict, found[False].determinable) == ("undecided", False)


def test_the_simulator_knows_nothing_of_the_analysis() -> None:
    check = "import sys, ddx_evals.simulator; print([name for name in sys.modules if name.startswith('ddx_tools')])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_failed_device_knows_less_of_its_completions_than_its_peers() -> None:
    made = simulate(3, kind="frozen_completion", world_size=8, ring=RING, lost=0.0)
    (culprit,) = made.truth.culprits
    assert pending(dumps(made)[culprit])


def test_degrading_loses_dumps_and_history_but_neither_the_job_nor_its_truth() -> None:
    whole = simulate(5, kind="rank_stalled", world_size=16, lost=0.0)
    less, least = degrade(whole, lost=0.25), degrade(whole, lost=0.5, ring=64)
    assert whole.truth.culprits == less.truth.culprits == least.truth.culprits
    assert len(whole.files) - len(less.files) == 4 * len(whole.files) // 16
    assert least.files.keys() < less.files.keys() < whole.files.keys()
    assert less.truth.undecided_accepted
    assert all(len(entries(dump)) <= 64 for dump in dumps(least).values())


def test_writing_a_job_keeps_the_truth_out_of_its_dumps_and_dates_the_files(tmp_path: Path) -> None:
    made = job("rank_stalled")
    write(made, tmp_path / "job")
    assert {path.name for path in (tmp_path / "job").iterdir()} == set(made.files)
    story = json.loads((tmp_path / "job.truth.json").read_text())
    assert tuple(story["truth"]["culprits"]) == made.truth.culprits
    for name, taken_ns in made.taken_ns.items():
        assert (tmp_path / "job" / name).stat().st_mtime_ns == taken_ns


def test_the_command_writes_a_job_and_refuses_an_impossible_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ddx_evals.simulator", str(tmp_path / "job"), "--world-size", "8"]
    done = subprocess.run([*command, "--kind", "wrong_shape"], capture_output=True, text=True, check=True)
    assert "wrong_shape, culprits [" in done.stdout
    refused = subprocess.run([*command, "--kind", "wrong_splits", "--world-size", "3"], capture_output=True, text=True)
    assert refused.returncode == 2
    assert "no place for wrong_splits" in refused.stderr


def test_benchmark_dumps_are_as_many_as_asked_and_the_same_each_time(tmp_path: Path) -> None:
    stalled = write_benchmark(tmp_path / "one", 16, 150, processes=1)
    assert write_benchmark(tmp_path / "two", 16, 150, processes=2) == stalled
    seen: dict[tuple[object, object], set[object]] = defaultdict(set)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
        dump = pickle.loads(path.read_bytes())
        assert len(dump["entries"]) == 150
        for entry in dump["entries"]:
            assert len(entry["frames"]) == 20
            if not entry["is_p2p"]:
                seen[entry["process_group"], entry["collective_seq_id"]].add(entry["profiling_name"])
        rank = int(path.name.rpartition("_")[2])
        waits = any(entry["state"] != "completed" for entry in dump["entries"] if not entry["is_p2p"])
        assert waits == (rank != stalled)
    assert all(len(names) == 1 for names in seen.values())
