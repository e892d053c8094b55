from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddx_tools.parsers.launch.launchers import find_jobs
from ddx_tools.sources.hosts.processes import snapshot

WAIT = "import sys; print('up', flush=True); sys.stdin.read()"
RANK = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "HF_TOKEN": "hf_secret"}


@contextmanager
def python(program: str, *arguments: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that has said that it is up, and ends with the block."""
    argv = [sys.executable, "-c", program, *arguments]
    surroundings = {**os.environ, **env}
    with subprocess.Popen(argv, env=surroundings, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout
            child.stdout.readline()
            yield child
        finally:
            child.kill()


def look() -> dict[int, dict[str, Any]]:
    return {row["pid"]: row for row in json.loads(snapshot())["processes"]}


def test_a_rank_is_described_in_full_and_without_secrets() -> None:
    with python(WAIT, "--api-key", "abc", **RANK) as rank:
        row = look()[rank.pid]
    assert row["ppid"] == os.getpid()
    assert row["readable"] is True
    assert row["denied"] == []
    assert row["cwd"] == str(Path.cwd())
    assert row["cmdline"][-2:] == ["--api-key", "<redacted>"]
    assert row["env"]["RANK"] == "3"
    assert "HF_TOKEN" not in row["env"]
    assert row["create_time"] > 0
    assert row["rss_bytes"] > 0


@pytest.mark.needs("linux")
def test_the_standard_streams_are_resolved() -> None:
    with python(WAIT, **RANK) as rank:
        assert look()[rank.pid]["fds"]["1"].startswith("pipe:[")


@pytest.mark.needs("linux")
def test_open_files_are_counted_beside_their_limit() -> None:
    holds = "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (70, 70))\n"
    holds += "kept = [open('/dev/null') for _ in range(50)]; print(flush=True); sys.stdin.read()"
    with python(holds, **RANK) as rank:
        seen = look()[rank.pid]
    assert seen["open_files_limit"] == 70
    assert 53 <= seen["open_files"] <= 60


def test_all_rows_have_the_same_keys() -> None:
    with python(WAIT, **RANK):
        assert len({tuple(row) for row in look().values()}) == 1


def test_processes_without_python_or_a_rank_stay_out_of_it() -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        found = look()
        stranger.kill()
    assert stranger.pid not in found
    assert os.getpid() not in found


def test_children_of_a_rank_belong_to_it_whatever_they_are() -> None:
    program = "import subprocess; c = subprocess.Popen(['sleep', '60']); print(c.pid, flush=True); c.wait()"
    with python("import sys; " + program, **RANK) as rank:
        helper = psutil.Process(rank.pid).children()[0]
        found = look()
        helper.kill()
    assert found[helper.pid]["ppid"] == rank.pid


@pytest.mark.needs("linux")
def test_a_dead_child_of_a_rank_is_kept() -> None:
    program = "import os, sys; p = os.fork(); p or os._exit(0); os.waitid(os.P_PID, p, os.WEXITED | os.WNOWAIT); "
    with python(program + WAIT, **RANK) as rank:
        dead = [row for row in look().values() if row["ppid"] == rank.pid]
    assert [(row["state"], row["readable"], row["env"]) for row in dead] == [("Z", False, None)]


@pytest.mark.needs("linux")
def test_a_stopped_rank_is_seen_as_stopped() -> None:
    with python(WAIT, **RANK) as rank:
        process = psutil.Process(rank.pid)
        process.suspend()
        os.waitid(os.P_PID, rank.pid, os.WSTOPPED | os.WNOWAIT)
        state = look()[rank.pid]["state"]
        process.resume()
    assert state == "T"


@pytest.mark.needs("linux", "root")
def test_what_another_user_may_not_read_is_shown_with_command_and_state_only() -> None:
    program = (
        "import os, sys; from ddx_tools.sources.hosts.processes import snapshot; snapshot(); "
        "os.setgid(65534); os.setuid(65534); sys.stdout.buffer.write(snapshot())"
    )
    with python(WAIT, **RANK) as rank:
        seen = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, cwd="/")
    row = next(row for row in json.loads(seen.stdout)["processes"] if row["pid"] == rank.pid)
    assert row["cmdline"][-1] == WAIT
    assert row["state"] in "RS"
    assert (row["readable"], row["denied"]) == (False, ["environ"])
    assert row["env"] is row["cwd"] is row["exe"] is None


SPAWN = """
import multiprocessing, socket, sys
def rank(port):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.recv(1)
def first(ports):
    with socket.create_server(("127.0.0.1", 0)) as server:
        ports.put(server.getsockname()[1])
        connection, _ = server.accept()
        ports.put(0)
        sys.stdin.read()
        connection.recv(1)
ports = multiprocessing.Queue()
processes = [multiprocessing.Process(target=first, args=(ports,))]
processes[0].start()
processes.append(multiprocessing.Process(target=rank, args=(ports.get(),)))
processes[1].start()
ports.get()
print("up", flush=True)
sys.stdin.read()
for process in processes:
    process.kill()
"""


@pytest.mark.needs("linux")
def test_children_that_are_connected_with_each_other_are_found_as_ranks() -> None:
    context = "import multiprocessing; multiprocessing.set_start_method('fork')\n"
    argv = [sys.executable, "-c", context + SPAWN]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        assert parent.stdout.readline() == b"up\n"
        jobs = [job for job in find_jobs(json.loads(snapshot())) if job.root_pid == parent.pid]
        parent.communicate()
    assert [job.launcher for job in jobs] == ["spawn"]
    assert len(jobs[0].live) == 2
