"""The rank agent comes into an interpreter without changing what happens there: real subprocesses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddx_tools.payloads import SITE_DIRECTORY

pytestmark = pytest.mark.slow

REPORT = (
    "import sys, threading; s = sys.modules.get('sitecustomize');"
    "print(getattr(s, 'WHO', None), getattr(s, '__name__', None),"
    " '_ddx_rank_agent' in sys.modules, threading.active_count(), 'torch' in sys.modules)"
)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run" / "ranks").mkdir(parents=True, mode=0o700)
    return tmp_path / "run"


def interpret(code: str, path: list[Path], run_dir: Path | None, **environ: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name not in ("RANK", "DDX_RUN_DIR")}
    variables |= {"PYTHONPATH": os.pathsep.join(map(str, path)), **environ}
    if run_dir is not None:
        variables["DDX_RUN_DIR"] = str(run_dir)
    return subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=60, check=False
    )


def other_sitecustomize(directory: Path, text: str) -> Path:
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(text)
    return directory


def test_the_users_sitecustomize_behind_ours_runs_as_the_real_one(tmp_path: Path, run_dir: Path) -> None:
    theirs = other_sitecustomize(tmp_path / "theirs", "WHO = 'theirs'\nassert __name__ == 'sitecustomize'\n")
    done = interpret(REPORT, [SITE_DIRECTORY, theirs], run_dir)
    assert done.stdout.split() == ["theirs", "sitecustomize", "True", "1", "False"]
    assert done.stderr == ""


def test_the_users_sitecustomize_before_ours_runs_alone(tmp_path: Path, run_dir: Path) -> None:
    theirs = other_sitecustomize(tmp_path / "theirs", "WHO = 'theirs'\n")
    done = interpret(REPORT, [theirs, SITE_DIRECTORY], run_dir)
    assert done.stdout.split() == ["theirs", "sitecustomize", "False", "1", "False"]


@pytest.mark.parametrize("error", ["1 / 0", "import nowhere_to_be_found"])
def test_an_error_in_the_users_sitecustomize_looks_as_without_us(tmp_path: Path, run_dir: Path, error: str) -> None:
    theirs = other_sitecustomize(tmp_path / "theirs", error)
    alone = interpret(REPORT, [theirs], None)
    chained = interpret(REPORT, [SITE_DIRECTORY, theirs], run_dir)
    assert (chained.returncode, chained.stderr) == (alone.returncode, alone.stderr)
    assert chained.stdout.split()[:2] == alone.stdout.split()[:2]


def test_a_sitecustomize_that_exits_still_ends_the_interpreter(tmp_path: Path, run_dir: Path) -> None:
    theirs = other_sitecustomize(tmp_path / "theirs", "raise SystemExit(5)")
    alone = interpret(REPORT, [theirs], None)
    chained = interpret(REPORT, [SITE_DIRECTORY, theirs], run_dir)
    assert (chained.returncode, chained.stdout) == (alone.returncode, alone.stdout)
    assert chained.stderr.splitlines()[-1] == alone.stderr.splitlines()[-1] == "SystemExit: 5"


def test_without_a_run_directory_nothing_starts() -> None:
    done = interpret(REPORT, [SITE_DIRECTORY], None, RANK="0", WORLD_SIZE="1")
    assert done.stdout.split()[2:] == ["False", "1", "False"]
    assert (done.stderr, done.returncode) == ("", 0)


def test_a_run_directory_that_is_gone_harms_nothing(tmp_path: Path) -> None:
    done = interpret("print('fine')", [SITE_DIRECTORY], tmp_path / "gone", RANK="0", WORLD_SIZE="1")
    assert (done.stdout, done.stderr, done.returncode) == ("fine\n", "", 0)


def test_a_rank_has_a_private_socket_at_any_depth_of_directory_and_takes_it_away(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120) / "run"
    (deep / "ranks").mkdir(parents=True, mode=0o700)
    look = (
        "import os; d = os.environ['DDX_RUN_DIR'] + '/ranks';"
        "s, = [n for n in os.listdir(d) if n.endswith('.sock')];"
        "print(s, oct(os.stat(d + '/' + s).st_mode), os.getpid())"
    )
    done = interpret(look, [SITE_DIRECTORY], deep, RANK="7", WORLD_SIZE="8")
    name, mode, pid = done.stdout.split()
    assert name == f"rank-7.{pid}.sock"
    assert mode == "0o140600"
    assert sorted(p.name for p in (deep / "ranks").iterdir()) == [
        f"rank-7.{pid}.exit.json",
        f"rank-7.{pid}.fault.txt",
    ]


def test_children_of_a_rank_have_no_socket_of_their_own(run_dir: Path) -> None:
    code = (
        "import os, subprocess, sys\n"
        "child = 'import os, threading; print(threading.active_count())'\n"
        "subprocess.run([sys.executable, '-c', child])\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    import threading\n"
        "    print(threading.active_count(), flush=True); os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "print(sum(n.endswith('.sock') for n in os.listdir(os.environ['DDX_RUN_DIR'] + '/ranks')))\n"
    )
    done = interpret(code, [SITE_DIRECTORY], run_dir, RANK="0", WORLD_SIZE="1")
    assert done.stdout.split() == ["1", "1", "1"]
    assert done.stderr == ""


def test_an_uncaught_exception_prints_and_exits_as_ever_and_is_written_down(run_dir: Path) -> None:
    code = "def step(): raise ValueError('bad batch')\nstep()"
    alone = interpret(code, [], None)
    done = interpret(code, [SITE_DIRECTORY], run_dir, RANK="0", WORLD_SIZE="1")
    assert (done.returncode, done.stderr) == (alone.returncode, alone.stderr) == (1, alone.stderr)
    (record,) = (run_dir / "ranks").glob("rank-0.*.exception.json")
    assert '"type": "ValueError", "message": "bad batch"' in record.read_text()
    # Nothing of the program is on its stack any more: whoever reads one would take the rank for idle.
    assert not list((run_dir / "ranks").glob("*.stacks.txt"))


def test_who_ends_itself_exits_as_ever_and_leaves_where(run_dir: Path) -> None:
    code = "import sys\ndef refuse(): sys.exit(3)\nrefuse()"
    done = interpret(code, [SITE_DIRECTORY], run_dir, RANK="0", WORLD_SIZE="1")
    assert (done.returncode, done.stderr) == (3, "")
    (note,) = (run_dir / "ranks").glob("rank-0.*.exit.json")
    left_at = json.loads(note.read_text())["left_at"]
    assert left_at.splitlines()[-2:] == ['  File "<string>", line 2, in refuse', "SystemExit: 3"]


def test_a_fatal_signal_leaves_the_line_in_the_ranks_fault_file(run_dir: Path) -> None:
    code = "import os\ndef reduce_gradients(): os.abort()\nreduce_gradients()"
    done = interpret(code, [SITE_DIRECTORY], run_dir, RANK="0", WORLD_SIZE="1")
    assert done.returncode == -6
    (fault,) = (run_dir / "ranks").glob("rank-0.*.fault.txt")
    assert "line 2 in reduce_gradients" in fault.read_text()


def test_the_users_own_faulthandler_is_left_alone(run_dir: Path) -> None:
    done = interpret(
        "import os; os.abort()", [SITE_DIRECTORY], run_dir, RANK="0", WORLD_SIZE="1", PYTHONFAULTHANDLER="1"
    )
    assert "Fatal Python error: Aborted" in done.stderr
    assert not list((run_dir / "ranks").glob("*.fault.txt"))


def test_a_crash_of_a_forked_child_does_not_look_like_the_ranks(run_dir: Path) -> None:
    code = "import os\npid = os.fork()\nif pid == 0: os.abort()\nos.waitpid(pid, 0)"
    interpret(code, [SITE_DIRECTORY], run_dir, RANK="0", WORLD_SIZE="1")
    (fault,) = (run_dir / "ranks").glob("rank-0.*.fault.txt")
    assert fault.read_text() == ""


def test_a_helper_loads_the_agent_but_starts_nothing(run_dir: Path) -> None:
    code = "'from multiprocessing.resource_tracker import main';" + REPORT
    done = interpret(code, [SITE_DIRECTORY], run_dir, RANK="0", WORLD_SIZE="1")
    assert done.stdout.split()[3] == "1"
    assert not list((run_dir / "ranks").iterdir())


def test_settings_get_their_old_names_where_torch_is_old(run_dir: Path, tmp_path: Path) -> None:
    # A stand-in for torch is enough: the agent looks at its version and at the import of torch.distributed.
    for version in ("2.5.1", "2.8.0+cu128"):
        package = tmp_path / version / "torch"
        (package / "distributed").mkdir(parents=True)
        (package / "__init__.py").write_text(f"__version__ = '{version}'\nimport torch.distributed\n")
        (package / "distributed" / "__init__.py").write_text("")
    code = (
        "import torch, os;print(*map(os.environ.get, ['TORCH_NCCL_TRACE_BUFFER_SIZE', 'TORCH_NCCL_DUMP_ON_TIMEOUT']))"
    )
    seen = [
        interpret(code, [SITE_DIRECTORY, tmp_path / version], run_dir, TORCH_FR_BUFFER_SIZE="2000").stdout.split()
        for version in ("2.5.1", "2.8.0+cu128")
    ]
    assert seen == [["2000", "1"], ["None", "None"]]
