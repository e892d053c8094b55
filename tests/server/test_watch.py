"""`ddx watch`: what each rank does, told from look to look."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from terminal import Terminal

from ddx_server.watch import watch_command
from ddx_server.watch.ranks import RankLook, RankRow, summary
from ddx_tools.errors import UsageError

MIB = 1 << 20


def status(enqueued: int, completed: int) -> dict[str, Any]:
    """What an agent says of a rank in two groups, in the second of which nothing happens."""
    counters = {"last_enqueued_collective": str(enqueued), "last_completed_collective": str(completed)}
    groups = [
        {"name": "0", "desc": "default_pg", "last_enqueued": enqueued},
        {"name": "1", "desc": "tp", "last_enqueued": 3},
    ]
    idle = {"last_enqueued_collective": "3", "last_completed_collective": "3"}
    return {"groups": groups, "pg_status": {"fr": {"0": counters, "1": idle}}, "process_cpu_s": 0.0}


def looked(rank: int, *looks: tuple[float, RankLook]) -> RankRow:
    row = RankRow(rank, 100 + rank)
    for now_s, seen in looks:
        row.look(seen, now_s)
    return row


def at(rank: int, said: dict[str, Any] | None, **seen: Any) -> RankLook:
    return RankLook(rank, 100 + rank, seen.pop("alive", True), status=said, rss_bytes=MIB, **seen)


def test_a_grid_of_a_hang_says_who_waits_where_and_who_does_not() -> None:
    waiting = [(0.0, status(11, 11)), (2.0, status(12, 11)), (33.0, status(12, 11))]
    rows = [
        *(looked(rank, *((now_s, at(rank, said)) for now_s, said in waiting)) for rank in range(3)),
        looked(3, (0.0, at(3, status(11, 11))), (33.0, at(3, status(11, 11), cpu_share=0.9))),
        looked(4, (0.0, at(4, status(11, 11))), (33.0, at(4, None, state="stopped"))),
        looked(5, (0.0, at(5, status(11, 11))), (33.0, at(5, None, alive=False))),
    ]  # fmt: skip
    assert [row.doing for row in rows] == [
        *["waits in default_pg, sequence 12"] * 3, "outside, busy", "stopped", "gone",
    ]  # fmt: skip
    assert summary(rows[:4]) == "rank 3: outside, busy (33 s); ranks 0-2: waits in default_pg, sequence 12 (31 s)"


def test_a_rank_that_goes_from_collective_to_collective_moves() -> None:
    row = looked(0, (0.0, at(0, status(11, 11))), (2.0, at(0, status(12, 11))), (4.0, at(0, status(40, 39))))
    assert (row.doing, row.age_s) == ("moves", 0.0)


def test_a_group_that_the_counters_do_not_name_is_not_guessed() -> None:
    said = status(12, 11)
    said["groups"].reverse()
    assert looked(0, (0.0, at(0, said)), (9.0, at(0, said))).doing == "waits in a group, sequence 12"


@pytest.fixture
def ranks() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes that a launcher might have started as ranks, without torch."""
    environ = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    program = [sys.executable, "-c", "import time; time.sleep(100)"]
    started = [subprocess.Popen(program, env={**environ, "RANK": str(rank)}) for rank in range(2)]
    yield started
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.needs("linux")
def test_any_job_can_be_watched_in_lines(ranks: list[subprocess.Popen[bytes]]) -> None:
    ranks[1].send_signal(signal.SIGSTOP)
    out = io.StringIO()
    watch_command([str(ranks[0].pid)], 0.0, Console(file=out, width=200), most_looks=3)
    (line,) = out.getvalue().splitlines()
    assert line.split("  ")[1] == "rank 0: idle; rank 1: stopped"


@pytest.mark.needs("linux")
def test_on_a_terminal_there_is_a_grid(ranks: list[subprocess.Popen[bytes]]) -> None:
    out = io.StringIO()
    watch_command([str(ranks[0].pid)], 0.0, Console(file=out, width=100, force_terminal=True), most_looks=1)
    assert "last moved" in out.getvalue() and "idle" in out.getvalue()


@pytest.mark.needs("linux")
def test_a_key_opens_a_rank_and_another_ends(ranks: list[subprocess.Popen[bytes]]) -> None:
    ddx = str(Path(sys.executable).with_name("ddx"))
    terminal = Terminal(ddx, "watch", str(ranks[0].pid), "--interval", "0.5", environ={**os.environ, "TERM": "xterm"})
    terminal.read_until(b"Enter open it")
    terminal.type(b"1\r")
    terminal.read_until(f"pid {ranks[1].pid}".encode())
    terminal.output = b""
    terminal.type(b"\x1b")
    terminal.read_until(b"last moved")
    terminal.type(b"q")
    assert terminal.end() == 0


def test_a_process_of_no_job_is_an_error_with_help() -> None:
    with pytest.raises(UsageError, match="belongs to no distributed job"):
        watch_command([str(os.getpid())], 0.0, Console(file=io.StringIO()), most_looks=1)
