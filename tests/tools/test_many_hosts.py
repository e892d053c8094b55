"""Many hosts as one job: what they answer, that it is merged without a difference, and who did not answer."""

from __future__ import annotations

import io
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import zstandard
from metrics_servers import Recorded, metrics_server
from serve_session import ask
from stack_bundles import packed

from ddx_evals.large.split_hosts import answer_of
from ddx_server.serve.config import ServeConfig
from ddx_tools import __version__
from ddx_tools.investigation.many_hosts import looked_from_here
from ddx_tools.investigation.many_hosts.node import answer, encoded
from ddx_tools.investigation.many_hosts.wire import Inbox
from ddx_tools.investigation.result import Investigation
from ddx_tools.investigation.run import investigate, replay
from ddx_tools.investigation.session.plan import Step, live_plan
from ddx_tools.model.diagnosis import Finding
from ddx_tools.model.errors import UsageError
from ddx_tools.probes.registry import probe
from ddx_tools.sources.bundle import Bundle
from ddx_tools.sources.cluster.targets import Reach, node_names, reach_of
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.hosts.recorded import RecordedHost
from ddx_tools.sources.packed_bundle import unpack

pytestmark = pytest.mark.slow

SPLIT = (
    "stopped",
    "dataloader-worker",
    *(pytest.param(name, marks=pytest.mark.long) for name in ("healthy", "send-to-each-other", "pipeline-schedule")),
)
_OF_ONE_HOST = {"job.found", "host.clock_differs"}
"""What is said of each host by itself; the clocks of these stand still."""


def answers(name: str, directory: Path, hosts: int = 4) -> tuple[str, ...]:
    """What each of several hosts prints, as files of their names."""
    names = tuple(f"host-{number}" for number in range(hosts))
    with Bundle(packed(name)) as whole:
        for number, host in enumerate(names):
            answer_of(whole, host, {number: number}, hosts, directory / host)
    return names


def printing(directory: Path, more: Mapping[str, str] | None = None) -> str:
    """Starts a program that prints what a host of this name prints; `more` has what others do, by name."""
    cases = [f"{host}) {does};;" for host, does in (more or {}).items()]
    (directory / "run").write_text(f"case $1 in {' '.join(cases)} *) cat {directory}/$1;; esac\n")
    return f"sh {directory}/run %host"


def asked(hosts: Sequence[str], via: str, total_s: float = 20.0, save: Path | None = None) -> Investigation:
    return investigate([], save, reach=Reach(tuple(hosts), via, total_s=total_s))


_SEAT = re.compile(r" \(host-\d+, local rank \d+\)")
"""Where a rank runs is told where there are several hosts."""


def told(findings: Sequence[Finding]) -> set[tuple[str, tuple[int, ...], tuple[str, ...]]]:
    return {
        (f.code, tuple(f.ranks), tuple(sorted(p.short() for p in f.locations)))
        for f in findings
        if f.code not in _OF_ONE_HOST
    }


@pytest.mark.parametrize("name", SPLIT)
def test_one_host_split_into_several_gives_the_same_findings(name: str, tmp_path: Path) -> None:
    hosts = answers(name, tmp_path)
    split, whole = asked(hosts, printing(tmp_path), save=tmp_path / "bundle"), replay(packed(name))
    assert told(split.findings) == told(whole.findings)
    one, other = split.diagnose(), whole.diagnose()
    headline = _SEAT.sub("", one.headline)
    assert (one.verdict, headline, one.culprits.ranks) == (other.verdict, other.headline, other.culprits.ranks)
    assert one.culprits.hosts == [f"host-{rank}" for rank in one.culprits.ranks] or not one.culprits.hosts
    assert [cause.id for cause in one.causes] == [cause.id for cause in other.causes]
    assert replay(tmp_path / "bundle").diagnose() == one


def test_hosts_that_do_not_answer_are_named_with_the_reason(tmp_path: Path) -> None:
    answers("stopped", tmp_path)
    whole = (tmp_path / "host-0").read_bytes()
    (tmp_path / "half").write_bytes(whole.partition(b"ddx1 rows")[0])
    others = {
        "cut-1": "echo 'ssh: connect to host cut-1 port 22: Connection timed out' >&2; exit 255",
        "cut-2": "echo 'ssh: connect to host cut-2 port 22: Connection timed out' >&2; exit 255",
        "closed": "echo 'ssh: connect to host closed port 22: Connection refused' >&2; exit 255",
        "hangs": f"cat {tmp_path}/half; exec sleep 30",
        "garbage": "head -c 3000 /dev/urandom",
        "bare": "echo 'timeout: failed to run command ddx: No such file or directory' >&2; exit 127",
        "half": f"cat {tmp_path}/half",
    }
    (tmp_path / "host-0").unlink()
    hosts = ["host-1", "host-2", "host-3", *others]
    found = asked(hosts, printing(tmp_path, others), total_s=4.0)
    states = {host: f.attributes["state"] for f in found.findings if f.code == "host.unanswered" for host in f.hosts}
    assert states == {
        "cut-1": "unreachable",
        "cut-2": "unreachable",
        "closed": "refused",
        "hangs": "silent",
        "garbage": "garbled",
        "bare": "no_ddx",
        "half": "silent",
    }
    unreachable = next(f for f in found.findings if f.attributes.get("state") == "unreachable")
    assert unreachable.summary == "cut-1, cut-2 do not answer: Connection timed out; rank 0 was not seen on any host."
    said = found.diagnose()
    assert said.looked_at == ["3 of 10 hosts answered"]
    assert said.culprits.ranks == [3], "what was seen decides"
    assert any(missing.what.startswith("cut-[1-2]: Connection timed out. Check whether") for missing in said.missing)


@pytest.mark.needs("linux")
def test_a_host_without_ddx_is_looked_at_from_here(tmp_path: Path) -> None:
    """This machine once more, on which `ddx` cannot be found; another one has no Python, either.

    Jobs of other tests may come and go meanwhile.
    """
    at_once = "shift; words=$(echo $* | sed 's,[^ ]*/ddx ,no-such-ddx ,')"
    others = {
        "bare": f"{at_once}; exec $words",
        "empty": f"{at_once}; exec $(echo $words | sed s/python3/no-such-python/)",
    }
    hosts = [*answers("stopped", tmp_path, hosts=2), *others]
    asked(hosts, printing(tmp_path, others), total_s=60.0, save=tmp_path / "bundle")
    with Bundle(tmp_path / "bundle") as bundle:
        states = {one.target: (one.state, one.host) for one in bundle.manifest.asked}
        (empty,) = [one for one in bundle.manifest.asked if one.target == "empty"]
        assert bundle.by_host[socket.gethostname()]
    assert states["bare"] in (("answered", socket.gethostname()), ("in_part", socket.gethostname()))
    assert states["empty"] == ("no_ddx", None)
    assert "no-such-python" in empty.reason


def test_what_a_host_made_before_its_answer_broke_off_counts(tmp_path: Path) -> None:
    hosts = answers("stopped", tmp_path)
    whole = (tmp_path / "host-3").read_bytes()
    (tmp_path / "host-3").write_bytes(whole.partition(b"ddx1 end")[0])
    said = asked(hosts, printing(tmp_path)).diagnose()
    assert said.culprits.ranks == [3]
    assert said.looked_at == ["3 of 4 hosts answered"]
    assert any(missing.what.startswith("host-3: it exited with 0") for missing in said.missing)


@pytest.mark.parametrize(("says", "suspects"), [("Connection timed out", [3]), ("Connection refused", [])])
def test_ranks_of_a_host_that_is_gone_are_suspects_while_all_others_wait(
    says: str, suspects: list[int], tmp_path: Path
) -> None:
    """One that refuses is up: its ranks may be well."""
    hosts = answers("stopped", tmp_path)
    gone = {"host-3": f"echo 'ssh: connect to host host-3 port 22: {says}' >&2; exit 255"}
    said = asked(hosts, printing(tmp_path, gone)).diagnose()
    assert [rank for suspect in said.suspects for rank in suspect.ranks] == suspects
    if suspects:
        assert said.verdict != "diagnosed", "why the host is gone is open"
        assert said.causes[0].id == "rank-crashed"
        assert said.next_check
        assert "Is the host up where rank 3 runs" in said.next_check.question


def test_a_login_banner_and_hosts_of_one_name_do_no_harm(tmp_path: Path) -> None:
    hosts = answers("stopped", tmp_path)
    with Bundle(packed("stopped")) as whole:
        for number, host in enumerate(hosts):
            answer_of(whole, "localhost", {number: number}, 4, tmp_path / host)
            (tmp_path / host).write_bytes(b"Welcome to\r\n*** the cluster ***\n" + (tmp_path / host).read_bytes())
    said = asked(hosts, printing(tmp_path)).diagnose()
    assert (said.culprits.ranks, said.culprits.hosts) == ([3], ["host-3"])


def test_an_answer_about_other_hosts_or_outside_of_its_bundle_is_refused(tmp_path: Path) -> None:
    hosts = answers("stopped", tmp_path)
    stranger = (tmp_path / "host-0").read_bytes().replace(b'"host": "host-0"', b'"host": "host-9"', 1)
    (tmp_path / "host-0").write_bytes(stranger)
    found = asked(hosts, printing(tmp_path))
    refused = next(f for f in found.findings if f.code == "host.unanswered")
    assert refused.attributes["state"] == "garbled"
    assert "it answers for another host: 'host-0'" in refused.summary


def test_an_answer_of_another_version_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    hosts = answers("stopped", tmp_path)
    said = (tmp_path / "host-0").read_bytes()
    newer = said.replace(f'"ddx": "{__version__}"'.encode(), b'"ddx": "99.0"', 1)
    (tmp_path / "host-0").write_bytes(newer.replace(b"ddx1 data KLUv", b"ddx1 data AAAA", 1))
    refused = next(f for f in asked(hosts, printing(tmp_path)).findings if f.code == "host.unanswered")
    assert refused.attributes["state"] == "no_ddx"
    assert refused.attributes["reason"] == f"it has ddx 99.0, this machine {__version__}"


def test_nobody_answers_is_an_error_with_the_reasons(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        asked(["a", "b"], printing(tmp_path, {"a": "exit 255", "b": "exit 0"}), total_s=5.0)
    assert error.value.message == "none of 2 hosts answered"
    assert "a: it exited with 255" in error.value.help


# --- who is meant


def test_hosts_are_named_by_node_sets_and_hostfiles(tmp_path: Path) -> None:
    assert node_names("node[1-3],other") == ["node1", "node2", "node3", "other"]
    (tmp_path / "hostfile").write_text("# of mpirun\nnode1 slots=8\nnode2:8\n\n")
    assert node_names(str(tmp_path / "hostfile")) == ["node1", "node2"]
    for wrong in ("-oProxyCommand=x", "a;b", "node[", ""):
        with pytest.raises(UsageError):
            node_names(wrong)


def program(directory: Path, name: str, prints: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a program, first on PATH."""
    says = f"open({str(directory / 'argv')!r}, 'w').write(' '.join(sys.argv[1:])); print({prints!r})"
    (directory / name).write_text(f"#!{sys.executable}\nimport sys\n{says}\n")
    (directory / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


def test_a_job_of_slurm_names_its_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "squeue", "gpu[07-08]", monkeypatch)
    found = reach_of(hosts="auto", environment={"SLURM_JOB_ID": "4242"})
    assert found and found.hosts == ("gpu07", "gpu08")
    assert found.via == ("srun --jobid=4242 --overlap --nodes=1 --ntasks=1 --input=none --quiet --nodelist=%host")
    assert found.job == "SLURM_JOB_ID=4242"


def test_pods_are_found_by_a_selector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pods = json.dumps({"items": [{"metadata": {"name": f"train-worker-{number}"}} for number in range(2)]})
    program(tmp_path, "kubectl", pods, monkeypatch)
    found = reach_of(k8s="app=train -n ml -c pytorch")
    assert found and found.hosts == ("train-worker-0", "train-worker-1")
    assert found.via == "kubectl exec -n ml -c pytorch %host --"
    assert (tmp_path / "argv").read_text() == "get pods --selector app=train --output json -n ml"


def test_pods_are_asked_by_kubectl_exec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a program that stands in for kubectl, and starts nothing in any pod."""
    pods = json.dumps({"items": [{"metadata": {"name": name}} for name in answers("stopped", tmp_path)]})
    (tmp_path / "pods").write_text(pods)
    script = f'#!/bin/sh\ncase $1 in get) cat {tmp_path}/pods;; exec) shift 3; cat "{tmp_path}/$1";; esac\n'
    (tmp_path / "kubectl").write_text(script)
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    said = investigate([], reach=reach_of(k8s="app=train -n ml")).diagnose()
    assert (said.culprits.ranks, said.culprits.hosts) == ([3], ["host-3"])


def test_a_shell_of_any_kind_says_that_ddx_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def archive() -> bytes:
        raise UsageError("nothing can be sent")

    monkeypatch.setattr(looked_from_here, "archive", archive)
    words = {
        "bash": "bash: line 1: ddx: command not found",
        "dash": "sh: 1: /opt/ddx: not found",
        "tcsh": "ddx: Command not found.",
        "fish": "fish: Unknown command: ddx",
    }
    shells = {shell: f"echo '{told}' >&2; exit 127" for shell, told in words.items()}
    asked([*answers("stopped", tmp_path, hosts=2), *shells], printing(tmp_path, shells), save=tmp_path / "bundle")
    with Bundle(tmp_path / "bundle") as bundle:
        states = {one.target: one.state for one in bundle.manifest.asked}
    assert {shell: states[shell] for shell in shells} == dict.fromkeys(shells, "no_ddx")


def test_why_nothing_can_be_sent_to_a_host_without_ddx_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def archive() -> bytes:
        raise UsageError("pynvml is not installed here, so nothing can be sent to hosts without ddx")

    monkeypatch.setattr(looked_from_here, "archive", archive)
    hosts = [*answers("stopped", tmp_path, hosts=2), "bare"]
    asked(
        hosts, printing(tmp_path, {"bare": "echo bash: ddx: command not found >&2; exit 127"}), save=tmp_path / "bundle"
    )
    with Bundle(tmp_path / "bundle") as bundle:
        (bare,) = [one for one in bundle.manifest.asked if one.target == "bare"]
    assert bare.state == "no_ddx"
    assert bare.reason.endswith("so nothing can be sent to hosts without ddx")


def test_what_reaches_a_host_can_be_typed_to() -> None:
    """What is sent to a host without ddx is written to the standard input of its Python."""
    step = "srun --jobid=4242 --overlap --input=none --quiet --nodelist=%host"
    for via, argv in (
        ("", "ssh -a -x -oBatchMode=yes -oConnectTimeout=5 node-1"),
        (step, "srun --jobid=4242 --overlap --quiet --nodelist=node-1"),
        ("kubectl exec -n ml %host --", "kubectl exec --stdin -n ml node-1 --"),
        ("ssh -p 2222 %host", "ssh -p 2222 node-1"),
    ):
        assert Reach(("node-1",), via).typed_to("node-1", 5) == argv.split()


def test_without_hosts_this_machine_is_meant() -> None:
    assert reach_of() is None
    assert [step.probe.id for step in live_plan([])][:2] == ["jobs", "stacks"]


def test_a_metrics_server_is_asked_about_hosts_that_answer_and_about_others(tmp_path: Path) -> None:
    hosts, bundle = (*answers("stopped", tmp_path), "gone-1"), tmp_path / "bundle"
    via = printing(tmp_path, {"gone-1": "echo Connection timed out >&2; exit 255"})
    with metrics_server(Recorded(0, 0)) as server:
        found = investigate([], bundle, reach=Reach(hosts, via), prometheus=server.url)
        assert all(f"{host}(" in query for host in hosts for _, query, _ in server.asked)
    lacks = f"{server.url} has no metrics of gone-1, host-0, host-1, host-2, host-3"
    assert lacks in [gap.what for gap in found.missing]
    assert lacks in [gap.what for gap in replay(bundle).missing]


def test_a_model_asks_the_hosts_that_its_server_was_told(tmp_path: Path) -> None:
    hosts = answers("stopped", tmp_path)
    config = ServeConfig.at([tmp_path], reach=Reach(hosts, printing(tmp_path)))
    assert ask(config, "diagnose")["culprits"]["ranks"] == [3]


@pytest.mark.needs("linux", "ptrace")
def test_a_host_sends_no_secret_opens_no_port_and_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listen(*_: object) -> None:
        raise AssertionError("a port was opened")

    monkeypatch.setattr(socket.socket, "listen", listen)
    (scratch := tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    secret, job = "h7Qx2LmZpT90sK4vW8bN3cY6", "790031"
    program = f"import sys\napi_key = '{secret}'\nprint('api_key={secret}', flush=True)\nsys.stdin.read()\n"
    (tmp_path / "train.py").write_text(program)
    environment = {
        "PATH": "/usr/bin:/bin",
        "RANK": "0",
        "WORLD_SIZE": "2",
        "SLURM_JOB_ID": job,
        "WANDB_API_KEY": secret,
    }
    argv = [sys.executable, str(tmp_path / "train.py"), f"--api-key={secret}"]
    with (tmp_path / "out.log").open("wb") as log:
        running = subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=log)
    try:
        while not (tmp_path / "out.log").read_bytes():
            time.sleep(0.05)
        said = io.BytesIO()
        answer(said, LocalHost(), plan=encoded(live_plan([])), job=f"SLURM_JOB_ID={job}", most_bytes=8 << 20, raw=True)
    finally:
        running.kill()
        running.communicate()
    inbox = Inbox(tmp_path / "host", 8 << 20)
    for line in said.getvalue().splitlines():
        inbox.take(line)
    sent = [
        zstandard.ZstdDecompressor().stream_reader(file.read_bytes()).read() for file in [*inbox.rows, *inbox.parts]
    ]
    assert any(b"train.py" in one for one in sent)
    assert not list(scratch.iterdir())
    assert not any(secret.encode() in one for one in [said.getvalue(), *sent])


def test_a_host_sends_no_more_than_it_may(tmp_path: Path) -> None:
    said = io.BytesIO()
    with Bundle(packed("stopped")) as bundle:
        recorded = RecordedHost(bundle, "node1", "stacks")
        answer(said, recorded, plan=encoded([Step(probe("stacks"), {"target": []})]), most_bytes=6_000, raw=True)
    inbox = Inbox(tmp_path / "host", 6_000)
    for line in said.getvalue().splitlines():
        inbox.take(line)
    assert inbox.end and inbox.end["left_out"] > 0
    assert not inbox.garbled and inbox.size_bytes <= 6_000
    unpack(inbox.parts[0], tmp_path / "bundle")
    with Bundle(tmp_path / "bundle") as bundle:
        assert {entry.error for entry in bundle.manifest.journal} == {None, "failed"}


@pytest.mark.parametrize("text", ["node[1-99999999]", "a[1-1000]b[1-1000]", "x,node[0-400000]"])
def test_more_hosts_than_there_can_be_are_refused_without_being_listed(text: str) -> None:
    started = time.monotonic()
    with pytest.raises(UsageError, match="more than 100,000 hosts"):
        node_names(text)
    assert time.monotonic() - started < 1.0
    assert len(node_names("node[001-128],a")) == 129
    assert node_names("pod-1234567890123456789") == ["pod-1234567890123456789"]
