"""How often a live job is looked at."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from ddx_tools.analysis.collectives.stacks.main_threads import STACK
from ddx_tools.probes.stacks.capture import capture_stacks
from ddx_tools.probes.stacks.probe import StacksArgs
from ddx_tools.sources.hosts.local import LocalHost

RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29713"}
ASLEEP = "import time\nprint(flush=True)\ntime.sleep(600)\n"
POLLS = "import time\nprint(flush=True)\nwhile True:\n    time.sleep(0.02)\n"
BRIEFLY_S = 0.6


@pytest.mark.needs("linux", "ptrace")
@pytest.mark.parametrize(
    ("program", "confirm_s", "looks"),
    [(ASLEEP, 0.0, {1, 2}), (POLLS, BRIEFLY_S, {1, 2, 3}), (ASLEEP, BRIEFLY_S, {1, 2})],
    ids=["nothing to confirm", "woke a moment ago", "the kernel says it slept long enough"],
)
def test_where_nobody_waits_and_nobody_moves_ranks_stand_long_enough(
    program: str, confirm_s: float, looks: set[int]
) -> None:
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=os.environ | RANK) as rank:
        assert rank.stdout is not None and rank.stdout.readline()
        time.sleep(BRIEFLY_S)
        args = StacksArgs(target=[str(rank.pid)], looks=2, apart_s=0.1, confirm_s=confirm_s)
        try:
            raw = capture_stacks(LocalHost("node"), args)
        finally:
            rank.kill()
    assert {item.facts["look"] for item in raw.of(STACK)} == looks
