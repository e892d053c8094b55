"""Jobs under `ddx run` that nobody watches: a hang is answered before its limit strikes, a pause is none.

Here are one scenario of each kind, and a job that pauses as healthy jobs do; the rules by which a silence is judged are
tested in tests/server/test_run_patience.py and test_run_attendant.py.
"""

import subprocess
from pathlib import Path

import pytest

from ddx_evals.lab import load_scenarios
from ddx_evals.lab.classes import usual_ranks
from ddx_evals.lab.outcome import ddx_command
from ddx_evals.lab.unattended import run_unattended

pytestmark = [
    pytest.mark.e2e, pytest.mark.alone, pytest.mark.long, pytest.mark.needs("linux"), pytest.mark.needs("torch"),
]  # fmt: skip

KINDS = (
    "skipped-all-reduce", "broadcast-for-all-reduce", "fewer-batches", "save-on-rank0", "pipeline-schedule", "stopped",
    "dataloader-worker", "lock-order", "mesh-straggler", "text-only-batch", "killed", "smaller-tensor",
    "raised-under-torchrun",
)  # fmt: skip


@pytest.mark.parametrize("scenario_id", KINDS)
def test_the_answer_stands_in_the_output_before_the_limit_strikes(scenario_id: str) -> None:
    ran = run_unattended(load_scenarios()[scenario_id], 4)
    assert not ran.wrong, f"{ran.wrong}\n{ran.printed}"


ON_FRAMEWORKS = {
    "accelerate": ("mean-loss-reported", "untagged-sentences", "own-shards"),
    "transformers": ("losses-of-all-printed", "stopped-by-callback", "target-reached"),
    "lightning": ("gradient-norm-logged", "patience-of-its-own", "snapshot-once"),
    "deepspeed": ("all-pages-read", "engine-saved-once", "repeated-pages-skipped"),
    "torch": ("captions-of-one-part", "evaluate-on-rank0", "text-only-batch"),
}
"""Of each framework three faults of its own kind: a branch, a stop, a step, data of one rank alone."""
FAULTS = [
    pytest.param(scenario_id, marks=pytest.mark.needs(framework))
    for framework, scenario_ids in ON_FRAMEWORKS.items()
    for scenario_id in scenario_ids
]


@pytest.mark.parametrize("scenario_id", FAULTS)
def test_of_a_job_on_a_framework_it_is_told_who_and_where(scenario_id: str) -> None:
    scenario = load_scenarios()[scenario_id]
    ran = run_unattended(scenario, usual_ranks(scenario))
    assert not [wrong for wrong in ran.wrong if not wrong.startswith("cause")], f"{ran.wrong}\n{ran.printed}"


PAUSING = """
import time, torch, torch.distributed as dist
from datetime import timedelta
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank = dist.get_rank()

def train(first, last):
    for step in range(first, last):
        dist.all_reduce(torch.ones(8))
        time.sleep(0.2)
        if rank == 0:
            print(f"step {step} loss 2.1", flush=True)

def burn(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))

def evaluate():
    burn(25)

def compile_graph():
    if rank == 1:
        burn(25)

def save_checkpoint():
    if rank == 0:
        time.sleep(25)

train(0, 40)
for number, pause in enumerate((evaluate, compile_graph, save_checkpoint, evaluate), 1):
    pause()
    train(40 * number, 40 * number + 40)
dist.destroy_process_group()
"""


def test_of_a_healthy_job_that_pauses_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PAUSING)
    torchrun = str(Path(ddx_command()).with_name("torchrun"))
    done = subprocess.run(
        [ddx_command(), "run", "--", torchrun, "--standalone", "--nproc-per-node=2", "train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "step 199 loss" in done.stdout
    assert "ddx: " not in done.stdout + done.stderr
