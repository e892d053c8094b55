"""Lab jobs as processes: they start, make progress, and end without leaving anything."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ddx_evals.lab import LabError, LabRun, load_scenarios
from ddx_evals.lab.processes import kill_all, processes_in, rank_processes

# A rank in a session of its own, as torchrun starts it, with a worker that inherits its variables.
FAMILY = """
import os, subprocess, sys
sleeper = [sys.executable, "-c", "import sys; sys.stdin.read()"]
worker = f"import subprocess; subprocess.run({sleeper!r})"
rank = subprocess.Popen(
    [sys.executable, "-c", worker], env=dict(os.environ, RANK="3"), start_new_session=True
)
print(flush=True)
rank.wait()
"""


@pytest.fixture
def family(tmp_path: Path) -> subprocess.Popen[bytes]:
    """A launcher, its rank and the rank's worker in `tmp_path`, all of them running."""
    launcher = subprocess.Popen(
        [sys.executable, "-c", FAMILY], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert launcher.stdout is not None
    launcher.stdout.readline()
    while len(processes_in(tmp_path)) < 3:
        assert launcher.poll() is None
    return launcher


def end(launcher: subprocess.Popen[bytes]) -> None:
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    launcher.stdin.close()
    launcher.stdout.close()
    launcher.wait()


def test_workers_that_inherit_the_rank_are_not_ranks(family: subprocess.Popen[bytes], tmp_path: Path) -> None:
    try:
        ranks = rank_processes(processes_in(tmp_path))
        assert list(ranks) == [3]
        assert ranks[3].ppid() == family.pid
    finally:
        kill_all(tmp_path, [])
        end(family)


def test_orphans_and_stopped_processes_are_killed(family: subprocess.Popen[bytes], tmp_path: Path) -> None:
    rank = rank_processes(processes_in(tmp_path))[3]
    worker = rank.children()[0]
    rank.suspend()
    family.kill()
    assert kill_all(tmp_path, []) == []
    end(family)
    assert not processes_in(tmp_path)
    assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in (rank, worker))


@pytest.mark.e2e
@pytest.mark.alone
@pytest.mark.long
@pytest.mark.needs("torch", "linux")
def test_a_healthy_job_makes_progress_and_leaves_nothing() -> None:
    with LabRun(load_scenarios()["healthy"], 2, step=2) as run:
        run.start()
        run.wait_healthy()
        run.wait_struck()
        assert list(run.rank_pids()) == [0, 1]
        processes = [psutil.Process(pid) for pid in (run.launcher_pid, *run.rank_pids().values())]
        assert run.truth().verdicts == ("healthy",)
        assert "step 0 loss 2." in run.launcher_log.read_text("utf-8")
    assert not run.workdir.exists()
    _, left = psutil.wait_procs(processes, timeout=10)
    assert not left


@pytest.mark.needs("torch", "linux")
def test_a_job_that_ends_too_early_shows_its_log() -> None:
    scenario = load_scenarios()["healthy"].model_copy(update={"launcher": "env", "job": "ddp"})
    with LabRun(scenario, 2) as run:
        run.start()
        with pytest.raises(LabError, match=r"ended with 2 before 3 steps\n.*can't open file"):
            run.wait_healthy()


WAITS = """
import signal, sys
from pathlib import Path
from ddx_evals.lab import LabRun, load_scenarios
with LabRun(load_scenarios()["healthy"], 2, Path(sys.argv[1])) as run:
    run.start()
    print(flush=True)
    signal.pause()
"""


@pytest.mark.needs("torch", "linux")
def test_a_run_that_is_terminated_ends_its_job(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITS, str(tmp_path)], stdout=subprocess.PIPE) as waiting:
        assert waiting.stdout is not None
        waiting.stdout.readline()
        assert processes_in(tmp_path)
        waiting.terminate()
        assert waiting.wait() == 128 + signal.SIGTERM
    assert not processes_in(tmp_path)
