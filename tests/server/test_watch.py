"""`ddx watch`: what each rank does, told from look to look."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from ras_servers import RasJob, ras
from rich.console import Console
from terminal import Terminal

from ddx_server.watch import watch_command
from ddx_server.watch.hosts import WatchedHosts, line_of
from ddx_server.watch.polled_ras import PolledRas
from ddx_server.watch.ranks import RankLook, RankRow, summary
from ddx_tools.model.errors import UsageError
from ddx_tools.parsers.launch.launchers import find_jobs
from ddx_tools.sources.cluster.targets import Reach
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.job_target import select_job

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


@contextmanager
def two_ranks(**environment: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes that a launcher might have started as ranks, without torch."""
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(os.getpid())}
    program = [sys.executable, "-c", "import time; time.sleep(100)"]
    environ = {**os.environ, **job, **environment}
    started = [subprocess.Popen(program, env={**environ, "RANK": str(rank)}) for rank in range(2)]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.fixture
def ranks() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two ranks."""
    with two_ranks() as started:
        yield started


@pytest.mark.needs("linux")
def test_any_job_can_be_watched_in_lines(ranks: list[subprocess.Popen[bytes]]) -> None:
    ranks[1].send_signal(signal.SIGSTOP)
    out = io.StringIO()
    watch_command([str(ranks[0].pid)], 0.0, Console(file=out, width=200), most_looks=3)
    (line,) = out.getvalue().splitlines()
    assert line.split("  ")[1] == "rank 0: idle; rank 1: stopped"


@pytest.mark.needs("linux")
@pytest.mark.parametrize(
    ("lacks", "how", "told"),
    [
        ({("ff", 5): 1}, "json", ["NCCL's RAS: Rank 5 "]),
        ({}, "json", []),
        ({}, "garbage", ["NCCL's RAS at ADDRESS: "]),
    ],
)
def test_nccls_ras_says_who_is_behind(lacks: dict[tuple[str, int], int], how: str, told: list[str]) -> None:
    job = RasJob(ranks=8, communicators={"ff": range(8)}, counts={"ff": 100}, lacks=lacks)
    with ras(job.report, how=how) as address, two_ranks(NCCL_RAS_ADDR=address, WORLD_SIZE="8") as started:
        job.pids = {rank: process.pid for rank, process in enumerate(started)}
        found = select_job(find_jobs(json.loads(LocalHost().processes().data)), [str(started[0].pid)])
        polled = PolledRas(found, among_others=False)
        while not polled.answers:
            polled.refresh()
            time.sleep(0.1)
    assert [line[: len(start)] for line, start in zip(polled.notes, told, strict=True)] == [
        start.replace("ADDRESS", address)[: len(start)] for start in told
    ]


@pytest.mark.needs("linux")
def test_on_a_terminal_there_is_a_grid(ranks: list[subprocess.Popen[bytes]]) -> None:
    out = io.StringIO()
    watch_command([str(ranks[0].pid)], 0.0, Console(file=out, width=100, force_terminal=True), most_looks=1)
    assert "last moved" in out.getvalue() and "idle" in out.getvalue()


@pytest.mark.needs("linux")
def test_a_key_opens_a_rank_and_another_ends(ranks: list[subprocess.Popen[bytes]]) -> None:
    ddx = str(Path(sys.executable).with_name("ddx"))
    terminal = Terminal(ddx, "watch", str(ranks[0].pid), "--interval", "0.5", environ={**os.environ, "TERM": "xterm"})
    terminal.read_until(b"Enter open that rank")
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


# --- many hosts


def hosts_that(directory: Path, **does: str) -> Reach:
    """Hosts, each of which does what a line of shell says instead of `ddx watch --rows`; `$*` is the command."""
    cases = " ".join(f"{host.replace('_', '-')}) shift; {line};;" for host, line in does.items())
    (directory / "run").write_text(f"case $1 in {cases} esac\n")
    return Reach(tuple(host.replace("_", "-") for host in does), f"sh {directory}/run %host")


def row(rank: int, doing: str, age_s: float = 31.0) -> RankRow:
    return RankRow(rank, 100 + rank, doing=doing, age_s=age_s, rss_bytes=MIB)


def telling(directory: Path, name: str, *rows: RankRow) -> str:
    (directory / name).write_bytes(line_of(7, rows, tells_waits=True))
    return f"cat {directory}/{name}; exec sleep 20"


def watched(reach: Reach, looks: int, **console: Any) -> str:
    out = io.StringIO()
    watch_command([], 0.7, Console(file=out, width=160, **console), most_looks=looks, reach=reach)
    return out.getvalue()


def test_the_ranks_of_many_hosts_stand_in_one_line(tmp_path: Path) -> None:
    waits = "waits in default_pg, sequence 12"
    reach = hosts_that(
        tmp_path,
        node_1=telling(tmp_path, "one", row(0, waits), row(1, waits)),
        node_2=f"echo Welcome to node-2; {telling(tmp_path, 'two', row(2, 'stopped'), row(3, waits))}",
        node_3="echo 'ssh: connect to host node-3 port 22: Connection refused' >&2; exit 255",
    )
    lines = watched(reach, 4).splitlines()
    assert all(": " in line for line in lines), "nothing is said before a word has come"
    last = lines[-1].split("  ")[1]
    assert last == (
        "step 7; rank 2 on node-2: stopped (31 s); ranks 0-1, 3: waits in default_pg, sequence 12 (31 s); "
        "node-3: ssh: connect to host node-3 port 22: Connection refused"
    )


def test_what_nccls_ras_says_on_several_hosts_stands_there_once(tmp_path: Path) -> None:
    behind = "NCCL's RAS: rank 1 launched fewer"
    for name, rank in (("one", 0), ("two", 1)):
        (tmp_path / name).write_bytes(line_of(7, [row(rank, "idle")], [behind], tells_waits=True))
    reach = hosts_that(tmp_path, a=f"cat {tmp_path}/one; exec sleep 20", b=f"cat {tmp_path}/two; exec sleep 20")
    assert watched(reach, 4).splitlines()[-1].count(behind) == 1


def test_what_a_host_says_wrongly_is_passed_over(tmp_path: Path) -> None:
    lines = [
        '{"step": 1}',
        '{"step": 1, "tells_waits": true, "rows": [["x", 1, "moves", null, null, null]]}',
        "[1",
        "7",
    ]
    (tmp_path / "odd").write_text("".join(f"ddx1 ranks {line}\n" for line in lines))
    reach = hosts_that(tmp_path, a=f"cat {tmp_path}/odd", b=telling(tmp_path, "b", row(0, "moves")))
    assert "rank 0: moves" in watched(reach, 4)


@pytest.mark.alone
def test_of_ten_thousand_ranks_those_that_do_the_same_stand_together(tmp_path: Path) -> None:
    does = {
        f"node_{host}": telling(
            tmp_path,
            str(host),
            *(row(rank, f"waits in tp, sequence {host}") for rank in range(host * 200, host * 200 + 200)),
        )
        for host in range(49)
    }
    does["node_49"] = telling(tmp_path, "last", *(row(9800 + rank, "outside, busy") for rank in range(200)))
    grid = watched(hosts_that(tmp_path, **does), 8, force_terminal=True)
    lines = [line for line in grid.splitlines() if "waits in tp" in line or "outside, busy" in line][-2:]
    assert "9800-9999" in lines[0] and "node-49" in lines[0]
    assert "0-9799" in lines[1] and "node-[0-48]" in lines[1] and "sequence" not in lines[1]


@pytest.mark.needs("linux")
def test_a_host_watches_its_own_ranks_until_nobody_listens(ranks: list[subprocess.Popen[bytes]]) -> None:
    ranks[1].send_signal(signal.SIGSTOP)
    reach = Reach(("here",), "env ASKED=%host", job=f"MASTER_PORT={os.getpid()}")
    hosts = WatchedHosts(reach, 0.3)
    try:
        deadline = time.monotonic() + 30
        while not hosts.rows and time.monotonic() < deadline:
            hosts.look()
            time.sleep(0.1)
        assert [(row.rank, row.doing, row.host) for row in hosts.rows] == [(0, "idle", "here"), (1, "stopped", "here")]
        assert any(f"pid {ranks[1].pid}" in line for line in hosts.page(1))
        below = [p for p in psutil.Process().children(recursive=True) if "--rows" in p.cmdline()]
        assert below
    finally:
        hosts.close()
    psutil.wait_procs(below, timeout=5)
    assert not [p for p in below if p.is_running()], "nothing stays behind"
