"""A scenario becomes an incident: nothing of the machine that recorded it is left, and it comes out the same again."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddx_evals.incidents import Truth, View, load_incident, named_incidents
from ddx_evals.lab import load_scenarios
from ddx_evals.recorder import record
from ddx_evals.recorder.capture import Capture, capture
from ddx_evals.recorder.job_host import JobHost
from ddx_evals.recorder.neutral_paths import make_neutral, neutral, own_paths
from ddx_evals.recorder.questions import asked_scenarios, question
from ddx_tools.investigation.many_hosts.merge import BundlePart, merge
from ddx_tools.investigation.run import investigate
from ddx_tools.investigation.session.plan import Step
from ddx_tools.investigation.single_probe import run_probe
from ddx_tools.model.diagnosis import ProbeStatus, Verdict
from ddx_tools.model.errors import NotPermitted
from ddx_tools.probes.registry import probe
from ddx_tools.sources.bundle import Bundle, BundleWriter, ProbeRun
from ddx_tools.sources.host import HostCall, Reply
from ddx_tools.sources.hosts.recorded import RecordedHost

_WAITS = """import sys
def main(batches):
    print(flush=True)
    sys.stdin.read()
main(batches=4711)
"""


def asked_again(told: Truth) -> dict[str, object]:
    """What has to come out the same when an incident is recorded again: all but when, where and by what versions."""
    again = told.model_dump(exclude={"provenance", "id", "views", "layout", "hardness"})
    return again | {"full": told.views[View.FULL]}


_A_CRASH = "dev/e35c1c"
_AT_LENGTH = ["dev/9bb4e3", "dev/3f902f", "dev/473659", "dev/b2951e", "test/7237fa", "test/ad8019", "test/b62d06"]
_LONG = [pytest.mark.long, pytest.mark.alone]
_AGAIN = [
    _A_CRASH,
    *(pytest.param(name, marks=_LONG) for name in [*_AT_LENGTH, "test/df36f2"]),
    pytest.param("dev/3bcbdd", marks=[*_LONG, pytest.mark.needs("lightning")]),
]


@pytest.mark.e2e
@pytest.mark.needs("linux", "ptrace", "torch")
@pytest.mark.parametrize("name", _AGAIN)
def test_an_incident_is_recorded_again_by_its_command(name: str, tmp_path: Path) -> None:
    (before,) = named_incidents([name])
    assert before.truth.provenance
    program, *said = shlex.split(before.truth.provenance.command)
    said[said.index("--out") + 1] = str(tmp_path)
    subprocess.run([Path(sys.executable).with_name(program), *said], check=True)
    again = load_incident(tmp_path / before.id)
    assert asked_again(again.truth) == asked_again(before.truth)
    verdicts = [investigate([str(each.material)], notes=[each.truth.prompt]).diagnose() for each in (before, again)]
    assert verdicts[0].verdict == verdicts[1].verdict
    assert verdicts[0].culprits.ranks == verdicts[1].culprits.ranks


@pytest.mark.e2e
@pytest.mark.alone
@pytest.mark.long
@pytest.mark.needs("linux", "root", "ptrace", "torch", "ip", "tc", "iptables", "unshare", "nsenter", "prlimit")
def test_two_hosts_are_asked_each_from_inside(tmp_path: Path) -> None:
    incident = record(load_scenarios()["second-machine"], 2, tmp_path, "0a1b")
    assert incident.truth.layout.hosts == {"node-a": (0,), "node-b": (1,)}
    with Bundle(incident.material) as bundle:
        hosts = {name: RecordedHost(bundle, name) for name in bundle.manifest.hosts}
        assert list(hosts) == ["node-a", "node-b"]
        addresses = {
            name: [address for one in json.loads(host.interfaces().data)["interfaces"] for address in one["ipv4"]]
            for name, host in hosts.items()
        }
        ranks = {
            name: {row["env"].get("RANK") for row in json.loads(host.processes().data)["processes"]} - {None}
            for name, host in hosts.items()
        }
    assert addresses == {"node-a": ["127.0.0.1", "10.20.30.11"], "node-b": ["127.0.0.1", "10.20.30.12"]}
    assert ranks == {"node-a": {"0"}, "node-b": {"1"}}
    assert investigate([str(incident.material)]).diagnose().verdict is Verdict.HEALTHY


def test_the_words_of_users_are_about_scenarios_that_exist() -> None:
    assert set(asked_scenarios()) <= set(load_scenarios())
    for scenario in asked_scenarios():
        assert question(scenario).prompt


@pytest.mark.parametrize("split", ["dev", pytest.param("test", marks=pytest.mark.long)])
def test_recordings_tell_nothing_of_the_machine(split: str) -> None:
    made = [each for each in named_incidents([split]) if each.truth.provenance]
    recordings = [each for each in made if each.truth.provenance and each.truth.provenance.kind == "recorded"]
    assert recordings
    for incident in recordings:
        with Bundle(incident.material) as bundle:
            kept = [file.read_bytes() for file in bundle.directory.rglob("*") if file.is_file()]
            looks = [
                json.loads(bundle.file(entry.content or entry.path).read_bytes())["processes"]
                for entry in bundle.manifest.journal
                if entry.op == "processes" and entry.path
            ]
        assert not any(path.encode() in data for data in kept for path in own_paths()), incident.id
        for processes in looks:
            launcher = min((process["pid"] for process in processes), default=None)
            known = {process["pid"] for process in processes}
            assert all(process["ppid"] in known or process["pid"] == launcher for process in processes), incident.id


@pytest.mark.needs("linux", "ss")
def test_a_job_host_shows_its_job_and_nobody_else() -> None:
    waits = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", waits], stdin=PIPE, stdout=PIPE) as job:
        assert job.stdout
        job.stdout.readline()
        host = JobHost(None, [job.pid])
        shown = json.loads(host.processes().data)["processes"]
        sockets = host.run(["ss", "-tinp"])
        with pytest.raises(NotPermitted, match="Operation not permitted"):
            host.run(["dmesg"])
        job.kill()
    assert [process["pid"] for process in shown] == [job.pid]
    assert len(sockets.data.splitlines()) == 1


@pytest.mark.needs("linux", "root", "dmesg")
def test_of_the_kernels_log_only_what_is_about_the_job_is_shown() -> None:
    logged = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
    nobody = max(map(int, re.findall(r"\d{1,9}", logged)), default=0) + 1
    assert not JobHost(None, [nobody], kernel_log=True).run(["dmesg"]).data
    for pid in re.findall(r"Killed process (\d+)", logged)[-1:]:
        shown = JobHost(None, [int(pid)], kernel_log=True).run(["dmesg"]).data.decode()
        assert f"Killed process {pid}" in shown
        assert set(shown.splitlines()) < set(logged.splitlines())


def bundle_of(directory: Path, answers: list[tuple[str, str, bytes]], probes: list[str]) -> Path:
    """A bundle in which these files were read, by host, path and content, and whose probes ran on the first host."""
    writer = BundleWriter(directory, ["1"])
    for host, path, data in answers:
        writer.write(host, "host", HostCall("read", path), Reply(data), 0.0)
    runs = [ProbeRun(probe=probe, host=answers[0][0], args={"target": ["1"]}, status="ok") for probe in probes]
    writer.manifest.probes.extend(runs)
    writer.close()
    return directory


def read(bundle: Bundle, host: str, path: str, times: int = 1) -> list[bytes]:
    recorded_host = RecordedHost(bundle, host)
    return [recorded_host.read(path).data for _ in range(times)]


def test_what_two_parts_asked_of_one_host_was_asked_twice(tmp_path: Path) -> None:
    first = bundle_of(tmp_path / "1", [("node-a", "/x", b"one"), ("node-a", "/x", b"two")], ["host"])
    second = bundle_of(tmp_path / "2", [("node-a", "/x", b"three"), ("node-a", "/y", b"y")], ["mesh"])
    merged = merge([BundlePart(first), BundlePart(second, replayed=False)], tmp_path / "whole")
    assert [run.probe for run in merged.probes] == ["host"]
    assert merged.target == ["1"]
    with Bundle(tmp_path / "whole") as bundle:
        assert read(bundle, "node-a", "/x", 3) == [b"one", b"two", b"three"]
        assert read(bundle, "node-a", "/y") == [b"y"]


def test_hosts_that_become_one_bundle_answer_each_for_itself(tmp_path: Path) -> None:
    parts = [
        BundlePart(bundle_of(tmp_path / host, [(host, "/etc/hostname", host.encode())], ["host"]))
        for host in ("node-a", "node-b")
    ]
    merged = merge(parts, tmp_path / "whole")
    assert merged.hosts == ["node-a", "node-b"]
    assert [(run.host, run.args) for run in merged.probes] == [(h, {"target": ["1"]}) for h in merged.hosts]
    # A pid of one host means nothing on the other.
    assert merged.target == []
    with Bundle(tmp_path / "whole") as bundle:
        assert [read(bundle, host, "/etc/hostname") for host in merged.hosts] == [[b"node-a"], [b"node-b"]]


@pytest.mark.needs("linux", "ptrace", "ss")
def test_what_ddx_why_does_not_ask_is_recorded_too(tmp_path: Path) -> None:
    workdir = tmp_path / "job"
    workdir.mkdir()
    (workdir / "train.py").write_text(_WAITS)
    environment = {**os.environ, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    argv = [sys.executable, "train.py"]
    with subprocess.Popen(argv, cwd=workdir, env=environment, stdin=PIPE, stdout=PIPE) as rank:
        assert rank.stdout
        rank.stdout.readline()
        bundle = tmp_path / "bundle"
        capture(Capture(directory=bundle, workdir=workdir, launcher_pid=rank.pid, rank_pids={0: rank.pid}, living=True))
        rank.kill()
    shown, _ = run_probe(Step(probe("native_stacks"), {"target": [str(bundle)], "show_locals": True}))
    assert shown.status is ProbeStatus.OK
    assert any("4711" in str(row["variables"]) for row in shown.table)
    with Bundle(bundle) as recorded_bundle:
        (host,) = recorded_bundle.manifest.hosts
        assert read(recorded_bundle, host, str(workdir / "train.py")) == [_WAITS.encode()]
    # But the diagnosis rests on what `ddx why` would have asked.
    assert "native_stacks" not in {result.probe for result in investigate([str(bundle)]).results}


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
