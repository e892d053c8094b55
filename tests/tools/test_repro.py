"""Scripts of collective faults: the calls that were recorded, in the smallest world that keeps the fault.

Incidents of the lab are recorded runs; those with 64 ranks and more are simulated.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest
from nccl_logs import train, world, write

from ddx_tools.evidence.store import Store
from ddx_tools.investigation.run import investigate
from ddx_tools.knowledge.resources import incidents_dir
from ddx_tools.model.errors import UsageError
from ddx_tools.repro.model import WORLD, Program, Recording, ReproCall
from ddx_tools.repro.run import run_script
from ddx_tools.repro.script import Rehearsal, Reproduction, healthy_twin, reproduce, smallest

pytestmark = pytest.mark.slow

FAULTS = {
    "dev/323867": "broadcast beside all_reduce",
    "dev/3bcbdd": "one rank saves",
    "dev/3f902f": "one rank saves, and gathers there",
    "dev/8d0914": "two ranks send to each other",
    "dev/8dd799": "one rank logs with a reduction",
    "dev/9bb4e3": "one rank has left the loop",
    "dev/c48e61": "one rank is in the barrier at the end",
    "dev/e1a423": "half precision on one rank: nothing hangs, the sum is wrong",
    "dev/e590b3": "one rank leaves out a sharded module",
    "later/57c0aa": "one rank gathers a whole weight",
    "later/8d2c51": "groups in another order on one rank",
    "later/903e7b": "new_group on some ranks alone",
    "later/b07e96": "one rank leaves out a gather of a group",
}
AT_EVERY_COMMIT = "dev/3f902f"
HEALTHY, OF_64_RANKS = "dev/f7d0a1", "dev/3b9f60"


def script_of(incident: str, *, tiny: bool = False) -> Reproduction:
    bundle = incidents_dir() / incident / "bundle.tar.zst"
    with Store() as store:
        return reproduce(store, investigate([str(bundle)], store=store).diagnose(), tiny=tiny)


def job(programs: Mapping[int, list[ReproCall]], *suspects: int, **groups: tuple[int, ...]) -> Recording:
    own = {rank: Program(tuple(calls), "" if calls else "stay_away") for rank, calls in programs.items()}
    return Recording(own, {WORLD: tuple(own), **groups}, frozenset(suspects))


@pytest.mark.e2e
@pytest.mark.needs("torch")
@pytest.mark.needs("linux")
@pytest.mark.parametrize(
    "incident", [each if each == AT_EVERY_COMMIT else pytest.param(each, marks=pytest.mark.long) for each in FAULTS]
)
def test_the_script_of_a_recorded_fault_fails_and_its_healthy_twin_runs_through(incident: str, tmp_path: Path) -> None:
    script = tmp_path / "repro.py"
    script.write_text(script_of(incident).text)
    fault = run_script(script, healthy=False, backend="gloo", deadline_s=4)
    twin = run_script(script, healthy=True, backend="gloo", deadline_s=60)
    assert not fault.through, fault.lines
    assert twin.through, twin.lines


def test_files_of_64_ranks_make_a_script_of_few() -> None:
    made = script_of(OF_64_RANKS, tiny=True)
    ast.parse(made.text)
    assert 2 <= len(made.ranks) <= 8 and 0 in made.ranks.values()
    assert "all_reduce" in made.text and "evaluate.py:41" in made.text
    assert any("1-63" in line or "2-63" in line for line in made.left_out)


def test_a_job_in_which_nobody_deviates_has_no_script() -> None:
    with pytest.raises(UsageError, match="run to completion"):
        script_of(HEALTHY)


def test_lines_of_nccl_make_a_script(tmp_path: Path) -> None:
    logs = world(4)
    train(logs, steps=20, nranks=4)
    for log in logs:
        log.op("Broadcast" if log.rank == 2 else "ReduceScatter", 20, 77, datatype=9, nranks=4)
    with Store() as store:
        diagnosis = investigate([str(write(tmp_path / "logs", logs))], store=store).diagnose()
        made = reproduce(store, diagnosis, tiny=False)
    assert 2 in made.ranks.values() and len(made.ranks) == 2
    assert "do('broadcast', 'world', 77, 'bfloat16')  # opCount 14" in made.text.replace('"', "'")
    assert "do('reduce_scatter', 'world', 77, 'bfloat16')" in made.text.replace('"', "'")


# --- the rules, each in a job that can be read


def test_who_stays_away_is_waited_for_and_two_ranks_suffice() -> None:
    recording = job({rank: [ReproCall("all_reduce", WORLD, 8)] * (rank != 5) for rank in range(64)}, 5)
    kept = smallest(recording)
    assert len(kept) == 2 and 5 in kept
    assert [call.op for call in healthy_twin(recording.of(kept))] == ["all_reduce"]


def test_ranks_that_call_the_same_play_to_their_end() -> None:
    recording = job({rank: [ReproCall("all_reduce", WORLD), ReproCall("barrier", WORLD)] for rank in range(4)})
    assert Rehearsal(recording).is_through and not smallest(recording)


def test_other_sizes_are_a_fault_and_the_twin_has_those_of_the_majority() -> None:
    recording = job({rank: [ReproCall("all_gather", WORLD, 7 if rank == 1 else 8)] for rank in range(4)}, 1)
    assert {call.elements for call in healthy_twin(recording)} == {8}
    assert Rehearsal(recording).stuck == {0, 1, 2, 3} and 1 in smallest(recording)


def test_a_call_too_much_is_not_in_the_twin() -> None:
    usual = [ReproCall("all_reduce", WORLD, 8), ReproCall("all_reduce", WORLD, 16)]
    recording = job(dict.fromkeys((0, 1, 3), usual) | {2: [ReproCall("all_reduce", WORLD, 1), *usual]}, 2)
    assert [call.elements for call in healthy_twin(recording)] == [8, 16]


def test_two_groups_in_different_order_are_a_circle_that_the_twin_has_not() -> None:
    one, other = ReproCall("all_reduce", "a"), ReproCall("all_reduce", "b")
    recording = job({0: [one, other], 1: [other, one]}, 1, a=(0, 1), b=(0, 1))
    assert Rehearsal(recording).stuck == {0, 1}
    assert [call.group for call in healthy_twin(recording)] == ["a", "b"]


def test_calls_that_are_finished_later_make_no_circle() -> None:
    one, other = ReproCall("all_reduce", "a", later=True), ReproCall("all_reduce", "b", later=True)
    recording = job({0: [one, other], 1: [other, one]}, 1, a=(0, 1), b=(0, 1))
    assert Rehearsal(recording).is_through
    assert Rehearsal(recording.in_turn()).stuck == {0, 1}


def test_sends_to_each_other_wait_and_the_twin_has_both_ends() -> None:
    sends = {rank: [ReproCall("send", WORLD, transfer=(rank, 1 - rank))] for rank in (0, 1)}
    recording = job(sends, 0, 1)
    assert Rehearsal(recording).stuck == {0, 1}
    assert [call.transfer for call in healthy_twin(recording)] == [(0, 1), (1, 0)]


@pytest.mark.parametrize("received", [3, 4])
def test_splits_pair_up_or_not(received: int) -> None:
    calls = {
        0: [ReproCall("all_to_all", WORLD, sends=(1, 4), receives=(1, 2))],
        1: [ReproCall("all_to_all", WORLD, sends=(2, 2), receives=(received, 2))],
    }
    assert Rehearsal(job(calls)).is_through is (received == 4)
