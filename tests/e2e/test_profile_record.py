"""`ddx profile --record` of a job that runs: under `ddx run` a trace and samples, under torchrun alone samples."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddx_tools.investigation.session.plan import Step
from ddx_tools.investigation.single_probe import run_probe
from ddx_tools.probes.registry import probe

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.needs("linux", "torch", "ptrace")]

PROGRAM = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def write_metrics():
    time.sleep(0.1)

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
print("ready", flush=True)
while True:
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    if dist.get_rank() == 1:
        write_metrics()
"""


@pytest.mark.parametrize("attended", [True, False])
def test_a_slow_rank_is_named_with_its_line(attended: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    argv = [str(Path(sys.executable).with_name("ddx")), "run", "--", *launch] if attended else launch
    with subprocess.Popen(
        argv, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as job:
        try:
            assert job.stdout is not None
            while b"ready" not in job.stdout.readline():
                assert job.poll() is None
            time.sleep(2)  # steps of a job that has warmed up
            found, _ = run_probe(Step(probe("profile"), {"target": [str(job.pid)], "record": True, "seconds": 3.0}))
        finally:
            job.send_signal(signal.SIGTERM)
            job.communicate()
    assert not found.problems
    by_code = {finding.code: finding for finding in found.findings}
    assert by_code["rank.waits_least"].locations[0].function == "write_metrics"
    assert ("rank.arrives_late" in by_code) is attended
    assert all(finding.ranks == [1] for code, finding in by_code.items() if code.startswith("rank."))
