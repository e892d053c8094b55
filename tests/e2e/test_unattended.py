"""Jobs under `ddx run` that nobody watches: a hang is answered before its limit strikes, a pause is none.

Here are one scenario of each kind, and a job that pauses as healthy jobs do; the rules by which a silence is judged are
tested in tests/server/test_run_patience.py and test_run_attendant.py. All scenarios that hang or crash, and an hour of
healthy jobs: `python -m ddx_evals.lab unattended` and `undisturbed`.
"""

import pytest

from ddx_evals.lab import load_scenarios
from ddx_evals.lab.classes import usual_ranks
from ddx_evals.lab.unattended import run_unattended, run_undisturbed

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


@pytest.mark.needs("g++")
def test_of_a_healthy_job_that_pauses_nothing_is_said() -> None:
    assert not run_undisturbed(load_scenarios()["slow-shelves"], 2, 240)
