"""A scenario becomes an incident: nothing of the machine that recorded it is left, and it comes out the same again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_incidents import RECORDED, recorded

from ddx_evals.incidents import Truth, View
from ddx_evals.lab import load_scenarios
from ddx_evals.recorder import record
from ddx_evals.recorder.job_host import JobHost
from ddx_evals.recorder.neutral_paths import make_neutral, neutral, own_paths
from ddx_evals.recorder.questions import asked_scenarios, question
from ddx_tools.bundle import Bundle
from ddx_tools.errors import NotPermitted, UsageError
from ddx_tools.investigate import investigate


def asked_again(told: Truth) -> dict[str, object]:
    """What has to come out the same when an incident is recorded again: all but when, where and by what versions."""
    again = told.model_dump(exclude={"provenance", "id", "views", "layout", "hardness"})
    return again | {"full": told.views[View.FULL]}


@pytest.mark.e2e
@pytest.mark.alone
@pytest.mark.long
@pytest.mark.needs("linux", "ptrace", "torch")
@pytest.mark.parametrize("scenario", ["fewer-batches", "save-on-rank0", "killed"])
def test_an_incident_is_recorded_again_with_the_same_truth_and_verdict(scenario: str, tmp_path: Path) -> None:
    before = recorded(scenario)
    again = record(load_scenarios()[scenario], 4, tmp_path, "0a1b")
    assert asked_again(again.truth) == asked_again(before.truth)
    verdicts = [investigate([str(each.material)]).diagnose() for each in (before, again)]
    assert verdicts[0].verdict == verdicts[1].verdict
    assert verdicts[0].culprits.ranks == verdicts[1].culprits.ranks


def test_the_words_of_users_are_about_scenarios_that_exist() -> None:
    assert set(asked_scenarios()) <= set(load_scenarios())
    for scenario in asked_scenarios():
        assert question(scenario).prompt
    with pytest.raises(UsageError, match="how 'compiling' becomes an incident"):
        question("compiling")


@pytest.mark.parametrize("incident", RECORDED, ids=lambda path: path.name)
def test_a_recording_tells_nothing_of_the_machine(incident: Path) -> None:
    with Bundle(incident / "bundle.tar.zst") as bundle:
        files = {file: file.read_bytes() for file in bundle.directory.rglob("*") if file.is_file()}
        rows = [json.loads(data)["processes"] for file, data in files.items() if file.name.startswith("processes-")]
    for file, data in files.items():
        assert not any(path.encode() in data for path in own_paths()), file
        assert "dmesg" not in file.name
    for processes in rows:
        launcher = min(process["pid"] for process in processes)
        known = {process["pid"] for process in processes}
        assert all(process["ppid"] in known or process["pid"] == launcher for process in processes)


@pytest.mark.needs("linux", "ss")
def test_a_job_host_shows_its_job_and_nobody_else() -> None:
    waits = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        assert job.stdout
        job.stdout.readline()
        host = JobHost(None, job.pid)
        shown = json.loads(host.processes().data)["processes"]
        sockets = host.run(["ss", "-tinp"])
        with pytest.raises(NotPermitted, match="Operation not permitted"):
            host.run(["dmesg"])
        job.kill()
    assert [process["pid"] for process in shown] == [job.pid]
    assert len(sockets.data.splitlines()) == 1


@given(st.from_regex(r"/[a-z.]{1,12}(/[a-z0-9._-]{1,12}){0,6}", fullmatch=True))
def test_a_neutral_path_has_the_length_of_the_one_it_stands_for(path: str) -> None:
    other = neutral(path)
    assert len(other) == len(path)
    assert other.startswith("/")
    assert not other.endswith("/")


def test_paths_are_replaced_in_records_and_in_names_without_moving_a_byte(tmp_path: Path) -> None:
    own = "/home/somebody/code"
    file = tmp_path / "glob-home_somebody_code_lib-0.json"
    file.write_bytes(b"\x80\x04\x8c\x1c/home/somebody/code/train.py\x94 home/somebody")
    make_neutral(tmp_path, [own])
    (replaced,) = tmp_path.iterdir()
    assert "somebody" not in replaced.name
    assert replaced.read_bytes() == b"\x80\x04\x8c\x1c" + neutral(own).encode() + b"/train.py\x94 home/somebody"
