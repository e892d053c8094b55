"""The simulator against records of real Gloo jobs: the same form, and for the same program the same story."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from ddx_evals.simulator import simulate
from ddx_evals.simulator.dump_format import Writer
from ddx_evals.simulator.engine import Engine
from ddx_evals.simulator.formats.dump_style import Format
from ddx_evals.simulator.moments import settled_ns
from ddx_evals.simulator.recording import Counters, Recorder, RecorderView, number
from ddx_evals.simulator.training.call_paths import stack, user
from ddx_evals.simulator.training.calls import Calls
from ddx_evals.simulator.training.instructions import Compute, Program, Sign
from ddx_evals.simulator.training.mesh import SimulatedMesh

Record: TypeAlias = dict[str, Any]

RECORDS = Path(__file__).parents[1] / "fixtures" / "flight_records"
GLOO = Format("2.10", "gloo", file_name="rank_{rank}.pkl", timeout_ms=1_800_000, header=True)
RANKS = 4


def recorded(case: str, rank: int) -> Record:
    dump: Record = pickle.loads((RECORDS / case / f"rank_{rank}.pkl").read_bytes())
    return dump


def taken(mesh: SimulatedMesh, programs: list[Program]) -> dict[str, bytes]:
    """The files of a Gloo job of these programs, some seconds after the last thing that happened in it."""
    runs = Engine(programs, start_ns=1_795_239_921_939_717_451, blocking=True, seed=1).run()
    writer = Writer(mesh, GLOO, [0] * RANKS)
    recorder = Recorder(gloo=True, timing=False, ring=120)
    files: dict[str, bytes] = {}
    for run in runs:
        number(run, Counters(), gloo=True)
        files |= writer.files(run.rank, RecorderView(run, recorder, settled_ns(runs) + 8 * 10**9))
    return files


def simulated(mesh: SimulatedMesh, programs: list[Program]) -> list[Record]:
    """The dump of each rank."""
    files = taken(mesh, programs)
    return [pickle.loads(files[f"rank_{rank}.pkl"]) for rank in range(RANKS)]


def story(dump: Record) -> list[tuple[object, ...]]:
    """What a rank did, without times and lines."""
    keys = (
        "record_id",
        "pg_id",
        "process_group",
        "profiling_name",
        "collective_seq_id",
        "p2p_seq_id",
        "op_id",
        "input_sizes",
        "input_dtypes",
        "output_sizes",
        "output_dtypes",
        "state",
        "retired",
        "is_p2p",
        "timeout_ms",
    )
    return [tuple(str(entry[key]) for key in keys) for entry in _entries(dump)]


def dp_tp_stall() -> tuple[SimulatedMesh, list[Program]]:
    """`dp_tp_stall fault` of the recorded jobs: the last rank stalls before a tensor-parallel all_reduce of step 3."""
    mesh, calls, where = SimulatedMesh(pp=1, dp=2, tp=2), Calls(gloo=True), stack(user("dp_tp_stall", "train.py", 178))
    programs = []
    for rank in range(RANKS):
        groups = mesh.of_rank[rank]
        program: Program = []
        for step in range(5):
            for layer in range(3):
                if (step, layer, rank) == (3, 1, RANKS - 1):
                    program.append(Sign.CPU_STUCK)
                program.append(calls.all_reduce(groups["tp"], (32,), where, "Float"))
            program.append(calls.all_reduce(groups["dp"], (64,), where, "Float"))
        programs.append([*program, calls.barrier(groups["world"], where)])
    return mesh, programs


def wrong_operation() -> tuple[SimulatedMesh, list[Program]]:
    """`wrong_operation fault`: rank 2 calls broadcast where the others call all_reduce, in step 4."""
    mesh, calls, where = (
        SimulatedMesh(pp=1, dp=RANKS, tp=1),
        Calls(gloo=True),
        stack(user("wrong_operation", "train.py", 150)),
    )
    programs = []
    for rank in range(RANKS):
        world = mesh.of_rank[rank]["world"]
        reduced = calls.all_reduce(world, (16,), where, "Float")
        program: Program = []
        for step in range(6):
            program.append(reduced)
            if (step, rank) == (4, 2):
                program.append(calls.broadcast(world, (16,), 0, where, "Float"))
            program.append(reduced)
        programs.append([*program, calls.barrier(world, where)])
    return mesh, programs


def roots_and_hand_over() -> tuple[SimulatedMesh, list[Program]]:
    """Gather to each root in turn and a send from it to the next rank: what `mixture` does, without the rest."""
    mesh, calls, where = SimulatedMesh(pp=1, dp=RANKS, tp=1), Calls(gloo=True), stack(user("mixture", "train.py", 200))
    programs = []
    for rank in range(RANKS):
        world = mesh.of_rank[rank]["world"]
        program: Program = []
        for root in range(RANKS):
            program.append(calls.gather(world, rank, (4,), root, where))
            program.append(Compute(1_000_000, 0))
            if root + 1 < RANKS and rank in (root, root + 1):
                program.append(calls.transfer(world, rank == root, 2 * root + 1 - rank, (4,), where, "Float"))
        programs.append([*program, calls.barrier(world, where)])
    return mesh, programs


@pytest.mark.parametrize("job", [dp_tp_stall, wrong_operation])
def test_the_program_of_a_recorded_job_leaves_the_same_records(
    job: Callable[[], tuple[SimulatedMesh, list[Program]]],
) -> None:
    for rank, dump in enumerate(simulated(*job())):
        real = recorded(f"{job.__name__}-fault", rank)
        assert story(dump) == story(real)
        assert dump["pg_status"] == real["pg_status"]
        assert dump["pg_config"] == real["pg_config"]
        assert (dump["version"], dump["comm_lib_version"]) == (real["version"], real["comm_lib_version"])
        assert list(dump) == list(real)


def test_sends_are_not_recorded_but_counted() -> None:
    for rank, dump in enumerate(simulated(*roots_and_hand_over())):
        real = [e for e in _entries(recorded("mixture-ok", rank)) if _is_users_gather_or_barrier(e)]
        made = _entries(dump)
        assert [e["profiling_name"] for e in made] == [e["profiling_name"] for e in real]
        assert [e["output_sizes"] for e in made] == [e["output_sizes"] for e in real]
        ahead = [e["op_id"] - e["collective_seq_id"] for e in made]
        assert ahead == [e["op_id"] - e["collective_seq_id"] for e in real]


def _entries(dump: Record) -> list[Record]:
    listed: list[Record] = dump["entries"]
    return listed


def _is_users_gather_or_barrier(entry: Record) -> bool:
    users: bool = entry["profiling_name"] == "gloo:gather" and entry["input_dtypes"] == ["Float"]
    return users or entry["profiling_name"] == "gloo:barrier"


@pytest.mark.parametrize("seed", range(3))
def test_an_entry_has_the_keys_and_types_that_gloo_writes(seed: int) -> None:
    real = _entries(recorded("mixture-ok", 0))[0]
    made = simulate(seed, kind="rank_stalled", world_size=8, gloo=True, lost=0.0)
    for name, content in made.files.items():
        if not name.endswith(".pkl"):
            continue
        for entry in _entries(pickle.loads(content)):
            assert list(entry) == list(real)
            assert [type(value) for value in entry.values()] == [type(value) for value in real.values()]
            assert entry["state"] == "scheduled"
            assert entry["is_p2p"] is False


def test_a_header_has_the_form_of_a_recorded_one() -> None:
    real = json.loads((RECORDS / "dp_tp_stall-fault" / "rank_3.header.json").read_text())
    made = json.loads(taken(*dp_tp_stall())["rank_3.header.json"])
    assert list(made) == list(real)
    assert made["groups"] == real["groups"]
    assert (made["rank"], made["local_rank"], made["world_size"], made["host"]) == (3, 3, 4, "node-0")
