"""The folders in docs/recipes that other programs leave: of Ray Train's hang detector, and of torch's periodic dumper.

Ray's is *constructed* after python/ray/train/v2/_internal/callbacks/nccl_ras.py of Ray 2.61 (057a6c42): file names from
there, RAS reports of tests/tools/ras_servers.py, and stacks as py-spy prints them. Its flight records are those that a
job of torch 2.13 answered (tests/fixtures/debug_server). Torch's dumps are *recorded* there.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ras_servers import RasJob

from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Verdict

DEBUG_SERVER = Path(__file__).parents[1] / "fixtures/debug_server"

pytestmark = pytest.mark.slow

WAITS = """\
    all_reduce (torch/distributed/distributed_c10d.py:3252)
    wrapper (torch/distributed/c10d_logger.py:83)
    train (train.py:20)
"""
READS = """\
    load_shard (train.py:12)
    train (train.py:19)
"""
STACKS = """\
Process {pid}: ray::RayTrainWorker._RayTrainWorker__execute
Python v3.11.7 (/usr/bin/python3.11)

Thread {pid} (active): "MainThread"
    main_loop (ray/_private/worker.py:961)
    <module> (ray/_private/workers/default_worker.py:330)
Thread {tid} (active): "TrainingThread(default_rank_{rank})"
{frames}    train_fn_with_final_checkpoint_flush (ray/train/v2/_internal/execution/worker_group/worker.py:168)
    run (threading.py:982)
    _bootstrap_inner (threading.py:1045)
    _bootstrap (threading.py:1002)
"""


def hang_detector(folder: Path, *, hung: bool) -> str:
    """The folder of a job of 4 ranks, of which rank 2 does not enter an all_reduce; or that went on after all."""
    top = folder / "hang_detector"
    for name in ("nccl_ras", "stack_traces", "flight_recorder", "nvidia_smi"):
        (top / name).mkdir(parents=True)
    for poll in range(4):
        launched = 5 if hung else 5 + 40 * poll
        job = RasJob(ranks=4, communicators={"ff": range(4)}, counts={"ff": launched}, lacks={("ff", 2): 1})
        report = job.report(10 * poll)
        stamp = json.loads(report)["timestamp"].translate(str.maketrans(" :", "--"))
        (top / "nccl_ras" / f"ncclras_{stamp}.json").write_text(report)
    looks = json.loads((DEBUG_SERVER / ("hung.json" if hung else "moving.json")).read_text())["looks"]
    for rank in range(4):
        frames = READS if hung and rank == 2 else WAITS
        text = STACKS.format(pid=40_000 + rank, tid=50_000 + rank, rank=rank, frames=frames)
        (top / "stack_traces" / f"rank_{rank}.log").write_text(text)
        (top / "flight_recorder" / f"rank_{rank}.json").write_text(looks[-1][rank]["fr_trace_json"])
    (top / "nvidia_smi" / "node_10.0.0.1.log").write_text("no `nvidia-smi` snapshot: timed out after 30s\n")
    return str(top)


def test_a_folder_of_rays_hang_detector_names_the_rank_and_its_line(tmp_path: Path) -> None:
    found = investigate([hang_detector(tmp_path, hung=True)]).diagnose()
    assert found.suspects[0].ranks == [2]
    assert found.suspects[0].locations[0].short() == "train.py:12 load_shard"
    assert found.victims.ranks == [0, 1, 3]


def test_a_folder_of_a_job_that_went_on_blames_nobody(tmp_path: Path) -> None:
    found = investigate([hang_detector(tmp_path, hung=False)]).diagnose()
    assert found.verdict is not Verdict.DIAGNOSED
    assert not found.suspects


def test_a_folder_of_torchs_periodic_dumps_names_the_rank_and_its_line() -> None:
    found = investigate([str(DEBUG_SERVER / "dumps" / "hung")]).diagnose()
    assert found.suspects[0].ranks == [2]
    assert found.suspects[0].locations[0].short() == "train.py:12 load_shard"


def test_dumps_of_a_job_that_makes_steps_blame_nobody() -> None:
    result = investigate([str(DEBUG_SERVER / "dumps" / "moving")])
    assert not result.diagnose().suspects
    for finding in result.findings:
        for shown in finding.evidence:
            file = DEBUG_SERVER / "dumps" / "moving" / Path(shown.source).name
            assert shown.line is None or shown.quote in file.read_text().splitlines()[shown.line - 1]
