"""A real Slurm: `--slurm JOB` finds nodes and ranks, and a job whose time ends says why it stood still."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from slurm_cluster import SLURM_NEEDS, slurm_cluster
from sshd_hosts import BIN, wait_for

from ddx_tools.model.diagnosis import Diagnosis

TRAIN = Path(__file__).parents[1] / "fixtures" / "many_hosts" / "train.py"
RECIPE = Path(__file__).parents[2] / "docs" / "recipes" / "slurm-batch.md"

pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.long, pytest.mark.needs("torch", "ptrace", *SLURM_NEEDS)]

OVER_NODES = f"""#!/bin/bash
export MASTER_ADDR=node-1 MASTER_PORT=29500 WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=0 OMP_NUM_THREADS=1
srun bash -c 'RANK=$SLURM_PROCID exec {sys.executable} {TRAIN}'
"""


def test_a_job_of_slurm_is_looked_at_on_its_nodes(tmp_path: Path) -> None:
    with slurm_cluster(["node-1", "node-2", "node-3"], tmp_path) as slurm:
        job = slurm.submit(OVER_NODES, "--nodes=3", "--ntasks-per-node=1")
        wait_for("the first step", lambda: slurm.printed(job).count("step 0") == 3, 60)
        done = slurm.at_desk(str(BIN / "ddx"), "why", "--slurm", job, "--json")
        slurm.at_desk("scancel", job)
    said = Diagnosis.model_validate_json(done.stdout)
    assert said.looked_at == ["3 of 3 hosts answered"], done.stderr
    assert (said.culprits.ranks, said.culprits.hosts) == ([2], ["node-3"])
    assert said.culprits.locations[0].short().endswith("train.py:14 read_batch")


def test_a_job_whose_time_ends_leaves_a_diagnosis_in_its_output(tmp_path: Path) -> None:
    """By the script of docs/recipes/slurm-batch.md, with less time and fewer ranks."""
    (recipe,) = re.findall(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", RECIPE.read_text(), re.S)
    script = recipe.replace("--nodes=1 --gres=gpu:8 --time=24:00:00", "--nodes=1 --time=1")
    script = script.replace("B:USR1@180", "B:USR1@30").replace("ddx run", f"{BIN}/ddx run")
    script = script.replace(
        "torchrun --standalone --nproc-per-node 8 train.py", f"{BIN}/torchrun --standalone --nproc-per-node 3 {TRAIN}"
    )
    with slurm_cluster(["node-1"], tmp_path) as slurm:
        job = slurm.submit(script)
        wait_for("the end of its time", lambda: "TIME LIMIT" in slurm.printed(job), 240)
        wait_for("the end of the job", lambda: not slurm.at_desk("squeue", "-h", "-j", job).stdout.strip(), 60)
        printed = slurm.printed(job)
    before, _, _ = printed.partition("TIME LIMIT")
    assert re.search(r"ddx: DIAGNOSED  Rank 2 at train\.py:14 read_batch", before), printed
