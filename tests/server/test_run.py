"""`ddx run` stands where the launcher would have stood: real child processes, signals and terminals."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from terminal import Terminal

from ddx_server.run.environment import for_job
from ddx_server.run.memory_kills import kills_since
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Verdict

RUN = [sys.executable, str(Path(__file__).with_name("run_as_user.py"))]
ROOT = Path(__file__).parents[2]
ENVIRON = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("TORCH_", "PET_", "DDX_"))},
    "PYTHONPATH": os.pathsep.join([str(ROOT / "tools"), str(ROOT / "server")]),
}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def run(run_dir: Path, *argv: str, environ: Mapping[str, str] = ENVIRON) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*RUN, str(run_dir), "0", *argv], env=environ, capture_output=True, timeout=60, check=False)


def start(run_dir: Path, *argv: str) -> subprocess.Popen[bytes]:
    """The command in a session of its own, as a shell would start it; returns once the job printed a line."""
    process = subprocess.Popen(
        [*RUN, str(run_dir), "0", *argv],
        env=ENVIRON,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def incidents(run_dir: Path) -> list[str]:
    file = run_dir / "incidents.txt"
    return file.read_text().splitlines() if file.exists() else []


def test_output_input_and_exit_code_pass_through_and_a_copy_stays(run_dir: Path) -> None:
    done = subprocess.run(
        [*RUN, str(run_dir), "0", "sh", "-c", "cat; printf 'no newline\\0\\377' >&2"],
        env=ENVIRON, input=b"from stdin\n", capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"from stdin\n", b"no newline\0\xff")
    assert sorted((run_dir / "launcher.log").read_bytes()) == sorted(b"from stdin\nno newline\0\xff")
    assert incidents(run_dir) == []


def test_two_streams_into_one_file_keep_their_order(run_dir: Path, tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb") as log:
        script = "for i in 1 2 3 4 5; do echo out$i; echo err$i >&2; done"
        subprocess.run([*RUN, str(run_dir), "0", "sh", "-c", script], env=ENVIRON, stdout=log, stderr=log, check=True)
    assert (tmp_path / "log").read_text().split() == [f"{s}{i}" for i in range(1, 6) for s in ("out", "err")]


def test_a_failure_keeps_its_exit_code_and_the_answer_stands_in_the_output(run_dir: Path) -> None:
    done = run(run_dir, "sh", "-c", "printf 'half a line' >&2; exit 7")
    assert done.returncode == 7
    assert done.stderr.decode().splitlines() == [
        "half a line",
        "ddx: the job failed with exit code 7.",
        "ddx: UNDECIDED  nobody knows",
        f"ddx: diagnose again: ddx why {run_dir}",
    ]
    assert incidents(run_dir) == ["what is left"]
    assert json.loads((run_dir / "run.json").read_text())["exit_code"] == 7


@pytest.mark.parametrize(("code", "verdict"), [(0, Verdict.HEALTHY), (7, Verdict.UNDECIDED)])
def test_only_of_a_job_that_ended_well_the_directory_is_healthy(run_dir: Path, code: int, verdict: Verdict) -> None:
    run(run_dir, "sh", "-c", f"echo hello; exit {code}")
    assert investigate([str(run_dir)]).diagnose().verdict is verdict


def test_a_launcher_killed_by_a_signal_takes_us_along(run_dir: Path) -> None:
    assert run(run_dir, "sh", "-c", "echo started; kill -SEGV $$").returncode == -signal.SIGSEGV
    assert incidents(run_dir) == ["what is left"]


def counts(name: str) -> list[str]:
    """A job that tells how often it got a signal, half a second after the first, and exits with 9."""
    job = (
        "import signal, sys, time\n"
        "seen = []\n"
        f"signal.signal(signal.SIG{name}, lambda *_: seen.append(1))\n"
        "print('up', flush=True)\n"
        "while not seen: time.sleep(0.01)\n"
        "time.sleep(0.5)\n"
        "print('signals', len(seen), flush=True)\n"
        "sys.exit(9)\n"
    )
    return [sys.executable, "-c", job]


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2"])
def test_a_signal_to_us_alone_reaches_the_launcher_once(run_dir: Path, name: str) -> None:
    process = start(run_dir, *counts(name))
    process.send_signal(signal.Signals[f"SIG{name}"])
    output, _ = process.communicate(timeout=60)
    assert (output, process.returncode) == (b"signals 1\n", 9)


def test_a_launcher_that_dies_of_a_passed_signal_was_stopped_not_failed(run_dir: Path) -> None:
    process = start(run_dir, "sh", "-c", "echo up; exec sleep 50")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert errors.startswith(b"ddx: the job was stopped.")
    assert incidents(run_dir) == []


def test_an_interrupt_from_the_terminal_is_not_delivered_twice(run_dir: Path) -> None:
    terminal = Terminal(*RUN, str(run_dir), "0", *counts("INT"), environ=ENVIRON)
    terminal.read_until(b"up")
    terminal.type(b"\x03")
    assert terminal.end() == 9
    assert b"signals 1\r\n" in terminal.output


def test_a_job_on_a_terminal_sees_a_terminal_of_the_same_size(run_dir: Path) -> None:
    job = "import os, sys; print(sys.stdout.isatty(), sys.stderr.isatty(), *os.get_terminal_size(2))"
    terminal = Terminal(*RUN, str(run_dir), "0", sys.executable, "-c", job, environ=ENVIRON)
    assert terminal.end() == 0
    assert terminal.output == b"True True 101 33\r\n"


def test_a_reader_that_goes_away_ends_the_job_as_it_would_without_us(run_dir: Path) -> None:
    process = start(run_dir, "sh", "-c", "echo up; exec yes")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=60) == -signal.SIGPIPE
    process.stderr.close()


def test_a_background_process_of_the_job_does_not_hold_us_back(run_dir: Path) -> None:
    done = run(run_dir, "sh", "-c", "sleep 50 & echo $!")
    os.kill(int(done.stdout), signal.SIGKILL)
    assert done.returncode == 0


def test_a_command_that_does_not_exist_is_an_error_with_help(run_dir: Path) -> None:
    done = run(run_dir, "torchrunn", "train.py")
    assert done.returncode == 2
    assert b"torchrunn: no such command\nType the launcher" in done.stderr
    assert not run_dir.exists()


def test_a_directory_in_use_is_refused(run_dir: Path) -> None:
    run_dir.mkdir()
    (run_dir / "old").write_text("")
    done = run(run_dir, "true")
    assert (done.returncode, b"not empty" in done.stderr) == (2, True)


def test_the_run_directory_is_private_and_its_description_holds_no_secret(run_dir: Path) -> None:
    run(run_dir, "true", "--api-key=sk-1234567890abcdef1234")
    assert [oct(p.stat().st_mode & 0o777) for p in (run_dir, run_dir / "ranks")] == ["0o700", "0o700"]
    described = (run_dir / "run.json").read_text()
    assert "sk-1234567890abcdef1234" not in described
    assert json.loads(described)["variables"]["DDX_RUN_DIR"] == str(run_dir)


def test_the_job_gets_what_makes_a_hang_diagnosable() -> None:
    job = for_job({"PATH": "/bin"}, Path("/r"), ["torchrun", "train.py"], rank_logs=True)
    assert job.environ["PATH"] == "/bin"
    assert job.variables["TORCH_FR_BUFFER_SIZE"] == "2000"
    assert job.variables["TORCH_DISTRIBUTED_DEBUG"] == "INFO"
    assert job.variables["PET_TEE"] == "3"
    # The old names would earn a warning from every rank of torch 2.8 and later.
    assert not [name for name in job.variables if name.startswith("TORCH_NCCL_") and "PIPE" not in name]


@pytest.mark.parametrize(
    ("name", "value", "left_out"),
    [
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "50", "TORCH_FR_BUFFER_SIZE"),
        ("TORCH_FR_BUFFER_SIZE", "0", "TORCH_FR_BUFFER_SIZE"),
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "/mine_", "TORCH_FR_DUMP_TEMP_FILE"),
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "TORCH_DISTRIBUTED_DEBUG"),
        ("PET_REDIRECTS", "3", "PET_TEE"),
        ("PET_LOG_DIR", "/mine", "PET_LOG_DIR"),
    ],
)
def test_what_the_user_set_stays_in_any_spelling(name: str, value: str, left_out: str) -> None:
    job = for_job({name: value}, Path("/r"), ["torchrun", "train.py"], rank_logs=True)
    assert job.environ[name] == value
    assert left_out not in job.variables
    assert job.kept == {name: value}


@pytest.mark.parametrize("options", [["-r", "3"], ["--tee=3"], ["--log-dir", "/mine"], ["--log_dir=/mine"]])
def test_log_options_of_the_launcher_keep_ours_away(options: list[str]) -> None:
    job = for_job({}, Path("/r"), ["torchrun", *options, "train.py"], rank_logs=True)
    assert not [name for name in job.variables if name.startswith("PET_")]


def test_options_of_the_training_script_are_not_the_launchers() -> None:
    job = for_job({}, Path("/r"), ["torchrun", "train.py", "-t", "5", "-r"], rank_logs=True)
    assert job.variables["PET_TEE"] == "3"


def test_a_kill_for_memory_while_the_job_ran_is_kept_and_an_earlier_one_is_not(tmp_path: Path) -> None:
    events = "low 0\nhigh 0\nmax 70\noom {0}\noom_kill {0}\noom_group_kill 0\n"
    ours, above = Path("/sys/fs/cgroup/job/memory.events"), Path("/sys/fs/cgroup/memory.events")
    before = {ours: events.format(0), above: events.format(3)}
    assert kills_since(before, before) == ""
    killed = kills_since(before, {ours: events.format(1), above: events.format(3)})
    assert killed == f"$ cat {ours}\n{events.format(1)}"
    shutil.copy(ROOT / "tests/fixtures/logs/spawn_sigkill.log", tmp_path)
    first = []
    for text in ("", killed):
        (tmp_path / "memory-kills.txt").write_text(text)
        first.append(investigate([str(tmp_path)]).diagnose().causes[0].id)
    assert first == ["rank-crashed", "host-oom-killed"]


def test_the_users_pythonpath_comes_behind_ours() -> None:
    job = for_job({"PYTHONPATH": "/a:/b"}, Path("/r"), ["true"], rank_logs=False)
    assert job.environ["PYTHONPATH"].endswith("/payloads/site:/a:/b")
