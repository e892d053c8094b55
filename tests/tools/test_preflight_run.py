"""Starting a preflight, and ending it, whatever the launcher does. The launchers here are small programs of our own."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from ddx_tools.investigation.run import ask_why
from ddx_tools.investigation.session.plan import Step
from ddx_tools.investigation.single_probe import run_probe
from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.model.errors import UsageError
from ddx_tools.probes.preflight.args import PreflightArgs
from ddx_tools.probes.preflight.job import MARK, PAYLOAD, command_of, environment_of
from ddx_tools.probes.preflight.run import run_preflight
from ddx_tools.probes.registry import probe

pytestmark = pytest.mark.needs("linux")


@pytest.fixture(autouse=True)
def no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories that nobody named are made here."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


# A rank as torchrun makes them: in a session of its own; it ignores what asks it to end. It says where it is.
STUBBORN = """
import pathlib, signal, subprocess, sys, time
rank = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
started = subprocess.Popen([sys.executable, "-c", rank], start_new_session=True, stdout=subprocess.PIPE)
started.stdout.readline()
pathlib.Path(sys.argv[2], "up").touch()
time.sleep(600)
"""


def launcher(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def of_run(directory: Path) -> list[psutil.Process]:
    """The processes of a run: its directory stands in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(directory):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def outcome(directory: Path) -> dict[str, object]:
    told: dict[str, object] = json.loads((directory / "preflight.json").read_text(encoding="utf-8"))
    return told


def test_what_never_moves_is_ended_with_all_its_children(tmp_path: Path) -> None:
    args = PreflightArgs(launcher=launcher(STUBBORN), start_deadline_s=2, directory=str(tmp_path / "run"))
    directory = run_preflight(args, ask_why)
    assert (directory / "up").exists()
    assert outcome(directory)["state"] == "expired"
    assert outcome(directory)["not_ended"] is None
    assert of_run(directory) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_ddx_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    directory = tmp_path / "run"
    ddx = Path(sys.executable).with_name("ddx")
    argv = [str(ddx), "preflight", "--directory", str(directory), "--", *launcher(STUBBORN)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as started:
        while not (directory / "up").exists():
            with pytest.raises(subprocess.TimeoutExpired):
                started.wait(0.05)
        assert of_run(directory)
        started.send_signal(number)
        assert started.wait(30) == 128 + number
    assert of_run(directory) == []


def test_a_launcher_that_fails_is_told_with_its_words(tmp_path: Path) -> None:
    failing = launcher("import sys; sys.exit('no GPU driver here')")
    directory = run_preflight(PreflightArgs(launcher=failing, directory=str(tmp_path / "run")), ask_why)
    assert (outcome(directory)["state"], outcome(directory)["exit_code"]) == ("failed", 1)
    assert "no GPU driver here" in (directory / "launcher.log").read_text(encoding="utf-8")


def test_a_bundle_of_a_run_is_read_again_and_starts_nothing(tmp_path: Path) -> None:
    line = {"kind": "rank", "rank": 0, "world_size": 1, "local_world_size": 1, "host": "node1", "backend": "gloo"}
    done = launcher(f"import pathlib, sys; pathlib.Path(sys.argv[2], 'rank-0.jsonl').write_text({json.dumps(line)!r})")
    bundle = tmp_path / "bundle"
    step = Step(probe("preflight"), {"target": [], "launcher": done})
    live, _ = run_probe(step, save=bundle)
    again, _ = run_probe(Step(probe("preflight"), {"target": [str(bundle)], "nproc": 512}))
    assert again.status is live.status is ProbeStatus.OK
    assert again.searched == live.searched
    assert again.findings == live.findings


def test_results_are_nobody_elses_business(tmp_path: Path) -> None:
    directory = run_preflight(PreflightArgs(launcher=launcher("")), ask_why)
    assert directory.stat().st_mode & 0o777 == 0o700
    with pytest.raises(UsageError, match="results of an earlier preflight"):
        run_preflight(PreflightArgs(launcher=launcher(""), directory=str(directory)), ask_why)


def test_the_launcher_gets_the_payload_where_its_program_stands(tmp_path: Path) -> None:
    args = PreflightArgs(launcher=[sys.executable, "-m", "x"], dims="dp=-1,tp=4", max_mib=8)
    *head, directory, plan = command_of(args, tmp_path, sweep=True)
    assert head == [sys.executable, "-m", "x", str(PAYLOAD)]
    assert directory == str(tmp_path)
    told = json.loads(plan)
    assert told["dims"] == [["dp", -1], ["tp", 4]]
    assert told["max_bytes"] == 8 << 20


def test_a_job_within_a_job_is_a_job_of_its_own(tmp_path: Path) -> None:
    environ = environment_of(tmp_path, {"DDX_RANK_OWNER": "1:0/0", "PYTHONPATH": "/mine", "OMP_NUM_THREADS": "7"})
    assert "DDX_RANK_OWNER" not in environ
    assert environ["PYTHONPATH"].split(os.pathsep)[-1] == "/mine"
    assert environ["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize(
    ("dims", "words"),
    [
        ("dp=2,tp=3", "2 x 3 does not multiply to 4 ranks"),
        ("dp=-1,tp=3", "-1 x 3 does not multiply to 4 ranks"),
        ("dp=-1,tp=-1", "more than one"),
        ("dp", "'dp' is not NAME=SIZE"),
        ("dp=0", "'dp=0' is not"),
        ("=4", "'=4' is not"),
    ],
)
def test_dimensions_that_do_not_fit_get_the_arithmetic(tmp_path: Path, dims: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        command_of(PreflightArgs(nproc=4, dims=dims), tmp_path, sweep=True)


@pytest.mark.parametrize("words", [["no-such-launcher"], ["/no/such/torchrun", "--nnodes", "2"]])
def test_a_launcher_that_is_not_there_is_refused(tmp_path: Path, words: Sequence[str]) -> None:
    with pytest.raises(UsageError, match="no such file or command"):
        command_of(PreflightArgs(launcher=list(words)), tmp_path, sweep=True)
