"""A rank of thousands of threads (a data loader that never joins any) is looked at like any other."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.alone, pytest.mark.needs("linux", "ptrace")]

PROGRAM = """
import threading, time
threading.stack_size(64 << 10)
for _ in range(3000):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("ready", flush=True)
time.sleep(600)
"""
RANK = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}


def test_three_thousand_threads_in_a_rank_cost_no_answer() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **RANK}, stdout=subprocess.PIPE, text=True
    ) as rank:
        try:
            assert rank.stdout is not None and rank.stdout.readline() == "ready\n"
            argv = [sys.executable, "-c", "from ddx_server.cli import main; main()", "why", str(rank.pid), "--json"]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        finally:
            rank.kill()
    told = json.loads(done.stdout)
    assert done.returncode == 3 and len(done.stdout) < 64 << 10
    assert {rank for suspect in told["suspects"] for rank in suspect["ranks"]} == {1}
