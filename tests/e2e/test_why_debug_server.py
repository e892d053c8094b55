"""A live job whose program started torch's debug server: one address answers for all ranks, no attaching needed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from machine_load import on_this_machine

from ddx_tools.investigation.run import investigate
from ddx_tools.model.errors import NotPermitted
from ddx_tools.sources.host import HostCall, Reply, error_reply
from ddx_tools.sources.hosts.local import LocalHost

pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.needs("linux", "torch", "tabulate")]

PROGRAM = """
import os, sys, time, torch, torch.distributed as dist
from torch.distributed.debug import start_debug_server

def load_shard(rank):
    time.sleep(1000)

dist.init_process_group("gloo")
start_debug_server(port=int(os.environ["DEBUG_PORT"]))
for step in range(100):
    if step == 3 and dist.get_rank() == 2:
        load_shard(2)
    dist.all_reduce(torch.ones(8))
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, list[psutil.Process]]]:
    """The port of the debug server, and the launcher with its ranks in order."""
    directory = tmp_path_factory.mktemp("job")
    (directory / "train.py").write_text(PROGRAM)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "train.py"]
    log = directory / "job.log"
    with (
        log.open("wb") as out,
        subprocess.Popen(
            launch, cwd=directory, stdout=out, stderr=out, env={**os.environ, "DEBUG_PORT": str(port)}
        ) as launcher,
    ):
        try:
            while "Frontend server started" not in log.read_text():
                assert launcher.poll() is None, log.read_text()
                time.sleep(0.2)
            ranks = [p for p in psutil.Process(launcher.pid).children() if "RANK" in p.environ()]
            ranks.sort(key=lambda process: int(process.environ()["RANK"]))
            while _why(str(port), port)["verdict"] == "healthy":  # it has not come to step 3 yet
                time.sleep(0.2)
            yield port, [psutil.Process(launcher.pid), *ranks]
        finally:
            launcher.terminate()


def _why(*target: Any) -> Any:
    program = "from ddx_server.cli import main; main()"
    asked = ["--debug-server", f"localhost:{target[-1]}"] if isinstance(target[-1], int) else list(target)
    done = subprocess.run(
        [sys.executable, "-c", program, "why", *asked, "--json"], capture_output=True, text=True, check=False
    )
    return json.loads(done.stdout)


def _told(said: Any) -> tuple[str, list[int], str, str]:
    first = said["suspects"][0]
    headline = re.sub(r" \([^)]*\)", "", said["headline"].partition(":")[0])  # of a silent rank the host is not known
    return said["verdict"], first["ranks"], headline, said["causes"][0]["id"]


ANSWER_S = 10.0
"""By one address, with one rank that does not answer as well."""
DIAGNOSED = ("diagnosed", [2], "Rank 2 is sleeping at train.py", "slow-rank-before-collective")


def test_one_address_names_rank_line_and_cause(job: tuple[int, list[psutil.Process]]) -> None:
    began_s = time.monotonic()
    said = _why(job[0])
    assert time.monotonic() - began_s <= on_this_machine(ANSWER_S)
    assert _told(said) == DIAGNOSED
    assert "train.py:6 load_shard" in said["headline"]


def test_a_rank_that_does_not_answer_is_told_and_takes_nothing_away(job: tuple[int, list[psutil.Process]]) -> None:
    stopped = job[1][4]
    stopped.send_signal(signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        said = _why(job[0])
        assert time.monotonic() - began_s <= on_this_machine(ANSWER_S)
    finally:
        stopped.send_signal(signal.SIGCONT)
    assert _told(said) == DIAGNOSED
    assert re.search(r"stack of rank 3: .* does not answer", json.dumps(said))


class NoAttach(LocalHost):
    """This machine, as one sees it who may not attach to processes."""

    def answer(self, call: HostCall) -> Reply:
        if call.op == "stack":
            return error_reply(NotPermitted("permission denied: attaching needs CAP_SYS_PTRACE", ""))
        return super().answer(call)


class AddressAlone(NoAttach):
    """Neither attaches nor has processes of the job to look at."""

    def answer(self, call: HostCall) -> Reply:
        if call.op not in ("fetch", "now"):
            return error_reply(NotPermitted(f"{call.op} is not permitted", ""))
        return super().answer(call)


def test_the_address_is_enough_where_nothing_else_may_be_read(job: tuple[int, list[psutil.Process]]) -> None:
    found = investigate([], debug_server=f"localhost:{job[0]}", machine=AddressAlone).diagnose()
    assert found.suspects[0].ranks == [2]
    assert "train.py:6 load_shard" in found.headline


def test_without_the_right_to_attach_the_stacks_come_from_the_server(job: tuple[int, list[psutil.Process]]) -> None:
    found = investigate([str(job[1][0].pid)], machine=NoAttach)
    said = found.diagnose()
    assert (said.verdict, said.suspects[0].ranks) == ("diagnosed", [2])
    assert "train.py:6 load_shard" in said.headline
    assert not [finding for finding in found.findings if finding.code == "rank.unreadable"]


def test_the_server_is_found_by_itself_and_gives_the_records(job: tuple[int, list[psutil.Process]]) -> None:
    said = _why(str(job[1][0].pid))
    assert said["suspects"][0]["ranks"] == [2]
    assert "not started by `ddx run`" not in json.dumps(said)
