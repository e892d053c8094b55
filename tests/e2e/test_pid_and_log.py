"""A live job that is named together with its log: the log adds to what the ranks show, and takes nothing away."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.alone, pytest.mark.needs("linux", "torch", "ptrace")]

PROGRAM = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(4))
print("rank", rank, "step 1 loss 0.5", flush=True)
if rank == 1:
    time.sleep(1000)
dist.all_reduce(torch.ones(4))
"""


def test_a_pid_and_its_log_give_at_least_what_the_pid_gives(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    log = tmp_path / "job.log"
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    with (
        log.open("wb") as out,
        subprocess.Popen([sys.executable, *launch], cwd=tmp_path, stdout=out, stderr=out) as job,
    ):
        try:
            while log.read_text().count("loss 0.5") < 2:
                assert job.poll() is None
            alone, with_log = (_why(str(job.pid), *more) for more in ([], [str(log)]))
        finally:
            job.terminate()
    assert alone["suspects"][0]["ranks"] == [1]
    for field in ("verdict", "headline", "suspects", "causes"):
        assert with_log.get(field) == alone.get(field)
    assert "1 log" in str(with_log["looked_at"])


def _why(*target: str) -> Any:
    program = "from ddx_server.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "why", *target, "--json"], capture_output=True, text=True, check=False
    )
    return json.loads(done.stdout)
