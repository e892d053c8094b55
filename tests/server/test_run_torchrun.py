"""`ddx run -- torchrun …` with real jobs of two ranks: what there is to see while they hang and later."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddx_tools.model.errors import TimedOut
from ddx_tools.sources.hosts.rank_agent import AgentAddress, ask, list_agents, parse_answer, record_parts

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("default")]
pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
RUN = [sys.executable, str(Path(__file__).with_name("run_as_user.py"))]

HEAD = """
import os, signal, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
tp = dist.new_group([0, 1], group_desc="tp")
for _ in range(3):
    dist.all_reduce(torch.ones(8))
print("ready", flush=True)
"""
# Rank 0 keeps its gradients to itself on every second step, rank 1 on every third: at the end they part.
NO_SYNC = (
    HEAD
    + """
from contextlib import nullcontext
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 17))
for step in range(9):
    with model.no_sync() if step % (2 + rank) == 0 else nullcontext():
        model(torch.ones(4, 32)).sum().backward()
dist.barrier()
"""
)
WORKERS = """
import os, torch, torch.distributed as dist
from torch.utils.data import DataLoader
def main():
    dist.init_process_group("gloo")
    for _ in DataLoader(list(range(4)), num_workers=1, multiprocessing_context="spawn"):
        dist.all_reduce(torch.ones(8))
    sockets = [n for n in os.listdir(os.environ["DDX_RUN_DIR"] + "/ranks") if n.endswith(".sock")]
    print("sockets", len(sockets))
    dist.barrier()
    dist.destroy_process_group()
if __name__ == "__main__":
    main()
"""
SPAWN = """
import os, time, torch, torch.distributed as dist, torch.multiprocessing as mp
def main(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1")
    store = dist.FileStore(os.environ["DDX_RUN_DIR"] + "/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    found = []
    while len(found) < 2:
        found = [n for n in os.listdir(os.environ["DDX_RUN_DIR"] + "/ranks") if n.endswith(".sock")]
        time.sleep(0.05)
    dist.barrier()
    if rank == 0:
        print(sorted(n.split(".")[0] for n in found))
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(main, nprocs=2)
"""


class Job:
    """A running `ddx run -- torchrun` of two ranks in a session of its own."""

    def __init__(self, directory: Path, script: str, stall_after_s: float = 0, launcher: str = "torchrun") -> None:
        self.run_dir = directory / "run"
        (directory / "train.py").write_text(script)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
        argv = {"torchrun": torchrun, "python": [sys.executable]}[launcher]
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH_", "PET_"))}
        environ |= {"PYTHONPATH": f"{ROOT / 'tools'}{os.pathsep}{ROOT / 'server'}", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [*RUN, str(self.run_dir), str(stall_after_s), *argv, str(directory / "train.py")],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def ended(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=120)
        return self.process.returncode, output.decode()

    def kill(self) -> None:
        for address in list_agents(str(self.run_dir)) if (self.run_dir / "ranks").exists() else []:
            with_pid_gone(address.pid)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


def with_pid_gone(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start(*arguments: object, **options: object) -> Job:
        jobs.append(Job(tmp_path, *arguments, **options))  # type: ignore[arg-type]
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


def until(condition: Callable[[], bool], what: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)


def hung(job: Job) -> list[AgentAddress]:
    """The agents, once every rank waits in a collective and none has moved for half a second."""

    def waits() -> bool:
        agents = list_agents(str(job.run_dir)) if (job.run_dir / "ranks").exists() else []
        before = [counters(address) for address in agents]
        time.sleep(0.5)
        after = [counters(address) for address in agents]
        # Gloo's two threads may finish in the other order, so the last one completed is not always the last but one.
        return len(agents) == 2 and before == after and all(begun > done > 3 for begun, done in after)

    until(waits, "both ranks wait in a collective")
    return list_agents(str(job.run_dir))


def counters(address: AgentAddress) -> tuple[int, int]:
    """(last enqueued, last completed) of the default group."""
    status = parse_answer(ask(address.run_dir, address.rank, address.pid, {"op": "status"}, 20))[0]
    default = status["pg_status"].get("fr", {}).get("0", {})
    return int(default.get("last_enqueued_collective", -1)), int(default.get("last_completed_collective", -1))


def stopped(pid: int) -> bool:
    """Whether no thread runs any more. The signal is sent at once; on a busy machine a thread still answers."""
    stats = [file.read_text() for file in Path("/proc", str(pid), "task").glob("*/stat")]
    return {stat.rpartition(")")[2].split()[0] for stat in stats} == {"T"}


def left_behind(job: Job, pattern: str) -> Path:
    (file,) = (job.run_dir / "ranks").glob(pattern)
    return file


def test_a_hung_job_gives_its_records_stacks_and_groups_and_stops_without_a_trace(
    start: Callable[..., Job],
) -> None:
    job = start(NO_SYNC, stall_after_s=2)
    agents = hung(job)
    last = []
    for address in agents:
        request = {"op": "records", "stacks": True}
        header, payload = parse_answer(ask(address.run_dir, address.rank, address.pid, request, 20))
        assert [(g["name"], g["desc"], g["ranks"]) for g in header["groups"]] == [
            ("0", "default_pg", [0, 1]),
            ("1", "tp", [0, 1]),
        ]
        # Our own process's pickle, of a job that this test wrote.
        last.append(pickle.loads(record_parts(header, payload)["fr"])["entries"][-1])
    assert [entry["profiling_name"] for entry in last] == ["gloo:barrier", "gloo:all_reduce"]
    assert [entry["retired"] for entry in last] == [False, False]
    assert any(frame["filename"].endswith("train.py") for frame in last[0]["frames"])

    _, text = parse_answer(ask(agents[1].run_dir, 1, agents[1].pid, {"op": "stacks"}, 20))
    assert b'train.py", line 14 in <module>' in text

    until(lambda: (job.run_dir / "incidents.txt").exists(), "the stall is noticed")
    assert set((job.run_dir / "incidents.txt").read_text().splitlines()) == {"what runs"}

    os.kill(agents[0].pid, signal.SIGSTOP)
    until(lambda: stopped(agents[0].pid), "every thread of rank 0 is stopped")
    with pytest.raises(TimedOut):
        ask(agents[0].run_dir, 0, agents[0].pid, {"op": "status"}, 0.3)
    assert counters(agents[1])[0] > 3
    os.kill(agents[0].pid, signal.SIGCONT)

    job.process.send_signal(signal.SIGTERM)
    code, output = job.ended()
    assert code == 1
    assert "ddx: the job was stopped." in output
    # Before the signal was passed on, each rank wrote down where it was.
    assert 'train.py", line 15 in <module>' in left_behind(job, "rank-0.*.stopped.stacks.txt").read_text()
    assert 'train.py", line 14 in <module>' in left_behind(job, "rank-1.*.stopped.stacks.txt").read_text()
    assert [address for address in agents if Path("/proc", str(address.pid)).exists()] == []
    assert not list((job.run_dir / "ranks").glob("*.sock"))


@pytest.mark.long
def test_an_exception_leaves_the_records_of_its_moment_and_a_log_for_each_rank(
    start: Callable[..., Job],
) -> None:
    job = start(HEAD + "if rank == 1: raise ValueError('bad batch')\ndist.all_reduce(torch.ones(8))\n")
    code, output = job.ended()
    assert code == 1
    assert "ddx: the job failed with exit code 1.\nddx: UNDECIDED  nobody knows\n" in output
    ended = [json.loads(line) for line in (job.run_dir / "ranks-ended.jsonl").read_text().splitlines()]
    assert (ended[0]["rank"], ended[0]["exit_code"] in (1, None)) == (1, True)
    record = json.loads(left_behind(job, "rank-1.*.exception.json").read_text())
    assert (record["reason"]["type"], record["reason"]["message"]) == ("ValueError", "bad batch")
    assert record["reason"]["frames"][-1][1:] == [9, "<module>"]
    assert record["groups"][0]["last_enqueued"] == 3
    assert pickle.loads(left_behind(job, "rank-1.*.exception.fr.pickle").read_bytes())["entries"]
    logs = [path.read_text() for path in sorted((job.run_dir / "logs").glob("*/attempt_0/*/stdout.log"))]
    assert logs == ["ready\n", "ready\n"]


@pytest.mark.long
def test_the_survivors_of_a_killed_rank_write_their_records_before_they_are_stopped(
    start: Callable[..., Job],
) -> None:
    job = start(HEAD + "if rank == 1: time.sleep(1.5); os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(100)\n")
    assert job.ended()[0] == 1
    record = json.loads(left_behind(job, "rank-0.*.peer-died.json").read_text())
    assert record["reason"]["rank"] == 1
    assert "train.py" in left_behind(job, "rank-0.*.peer-died.stacks.txt").read_text()


@pytest.mark.long
def test_a_rank_that_native_code_aborts_leaves_the_line_of_its_collective(start: Callable[..., Job]) -> None:
    job = start(HEAD + "dist.all_reduce(torch.ones(4 if rank == 1 else 8))\n")
    assert job.ended()[0] == 1
    fault = left_behind(job, "rank-1.*.fault.txt").read_text()
    assert fault.startswith("Fatal Python error: Aborted")
    assert 'train.py", line 9 in <module>' in fault


@pytest.mark.long
def test_data_loader_workers_are_not_taken_for_ranks(start: Callable[..., Job]) -> None:
    code, output = start(WORKERS).ended()
    assert code == 0
    assert output.count("sockets 2") == 2


@pytest.mark.long
def test_spawned_processes_become_ranks_when_they_join_a_process_group(start: Callable[..., Job]) -> None:
    code, output = start(SPAWN, launcher="python").ended()
    assert code == 0, output
    assert output.splitlines() == ["['rank-0', 'rank-1']"]
