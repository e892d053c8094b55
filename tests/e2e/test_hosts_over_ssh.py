"""A real job over several hosts, each with an sshd of its own; `ddx why --hosts` asks from a machine beside them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from sshd_hosts import BIN, NEEDS, Hosts, sshd_hosts, sshd_of, wait_for

from ddx_evals.lab import load_scenarios
from ddx_evals.lab.truth import resolve_truth
from ddx_evals.lab.wires import cut
from ddx_evals.lab.workspace import prepare
from ddx_tools.model.diagnosis import Diagnosis
from ddx_tools.sources.bundle import Bundle

NODES = ("node-1", "node-2", "node-3", "node-4")
STEP = 10
SECRET = "h7Qx2LmZpT90sK4vW8bN3cY6"

pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.long, pytest.mark.needs("torch", "ptrace", *NEEDS)]


class Job:
    """A lab job with a rank on each host, in a directory that they share."""

    def __init__(self, hosts: Hosts, scenario: str, workdir: Path) -> None:
        self.hosts, self.workdir = hosts, workdir
        self.scenario = load_scenarios()[scenario]
        prepare(self.scenario, len(NODES), STEP, workdir)

    def start(self) -> None:
        arguments = [self.scenario.fill(arg, len(NODES), STEP) for arg in self.scenario.args]
        for rank, host in enumerate(NODES):
            told = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "node-1"}
            words = [f"{name}={value}" for name, value in told.items()]
            words += [
                "MASTER_PORT=29500",
                "OMP_NUM_THREADS=1",
                f"PATH={os.environ['PATH']}",
                f"WANDB_API_KEY={SECRET}",
            ]
            run = [
                "setsid",
                "--fork",
                "env",
                f"--chdir={self.workdir}",
                "-i",
                *words,
                sys.executable,
                "train.py",
                *arguments,
            ]
            with (self.workdir / f"rank{rank}.log").open("wb") as log:
                subprocess.run(
                    self.hosts.inside(host, run),
                    cwd=self.workdir,
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    check=True,
                )

    def step(self) -> int:
        printed = (self.workdir / "rank0.log").read_text()
        return max((int(step) for step in re.findall(r"^step (\d+) ", printed, re.M)), default=-1)

    def wait_for_step(self, step: int = STEP) -> None:
        wait_for(f"step {step}", lambda: self.step() >= step)

    def wait_until_quiet(self, seconds: float = 4.0) -> None:
        self.wait_for_step(STEP - 1)
        log = self.workdir / "rank0.log"
        wait_for("the end of output", lambda: time.time() - log.stat().st_mtime > seconds)

    def pid(self, rank: int) -> int:
        """Of the process of a rank, as seen from outside."""
        here = psutil.Process(self.hosts.inits[NODES[rank]]).children(recursive=True)
        return min(process.pid for process in here if _rank(process) == str(rank))


def _rank(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("RANK")
    except psutil.Error:
        return None


@contextmanager
def job(scenario: str, tmp_path: Path, extra: Sequence[str] = ()) -> Iterator[Job]:
    home, workdir = tmp_path / "home", tmp_path / "job"
    home.mkdir()
    workdir.mkdir()
    with sshd_hosts([*NODES, *extra], home) as hosts:
        running = Job(hosts, scenario, workdir)
        running.start()
        yield running


@contextmanager
def job_stopped_on_node_4(tmp_path: Path, extra: Sequence[str] = ()) -> Iterator[Hosts]:
    """The hosts of a job that waits for rank 3, which is stopped."""
    with job("stopped", tmp_path, extra) as running:
        running.wait_for_step()
        os.kill(running.pid(3), signal.SIGSTOP)
        running.wait_until_quiet()
        yield running.hosts


def why(hosts: Hosts, *options: str, gateways: Path | None = None) -> tuple[dict[str, Any], float]:
    """The diagnosis, and how many seconds it took."""
    started = time.monotonic()
    way = ["--gateways", str(gateways)] if gateways else ["--via", hosts.via]
    done = hosts.at_desk(str(BIN / "ddx"), "why", "--hosts", "node-[1-4]", *way, *options, "--json")
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    seconds = time.monotonic() - started
    return Diagnosis.model_validate_json(done.stdout).model_dump(mode="json"), seconds


def places(diagnosis: dict[str, Any]) -> set[tuple[str, int]]:
    return {(place["file"], place["line"]) for place in diagnosis["culprits"]["locations"]}


@pytest.mark.parametrize("scenario", ["healthy", "stopped", "dataloader-worker", "skipped-all-reduce"])
def test_rank_host_and_line_are_named(scenario: str, tmp_path: Path) -> None:
    with job(scenario, tmp_path) as running:
        if running.scenario.signal:
            running.wait_for_step()
            rank = running.scenario.ranks[4][running.scenario.signal.rank]
            os.kill(running.pid(rank), signal.Signals[running.scenario.signal.name])
        if scenario == "healthy":
            running.wait_for_step()
        else:
            running.wait_until_quiet()
        said, seconds = why(running.hosts, "--save", str(tmp_path / "bundle.tar.zst"))
        truth = resolve_truth(running.scenario, 4, STEP, running.workdir)
    print(f"{scenario}: {seconds:.1f} s, {said['headline']}")
    assert said["verdict"] in truth.verdicts, said
    ranks = frozenset(said["culprits"]["ranks"])
    assert not truth.culprits or ranks in truth.culprits, said
    assert set(said["culprits"]["hosts"]) == {NODES[rank] for rank in ranks}
    assert not truth.places or places(said) & {(str(running.workdir / p.file), p.line) for p in truth.places}
    assert "4 of 4 hosts answered" in said["looked_at"]
    with Bundle(tmp_path / "bundle.tar.zst") as bundle:
        assert not any(SECRET.encode() in f.read_bytes() for f in bundle.directory.rglob("*") if f.is_file())


def test_a_firewall_between_two_hosts_is_named_with_both(tmp_path: Path) -> None:
    """All other pairs go on talking: each of the two answers, and neither hears the other."""
    with job("healthy", tmp_path) as running:
        running.wait_for_step()
        for host, other in (("node-2", "node-3"), ("node-3", "node-2")):
            rule = ["iptables", "-A", "INPUT", "-s", running.hosts.address(other), "-j", "DROP"]
            subprocess.run(running.hosts.inside(host, rule), check=True)
        running.wait_until_quiet(8.0)
        said, seconds = why(running.hosts, "--save", str(tmp_path / "bundle.tar.zst"))
    print(f"firewall: {seconds:.1f} s, {said['headline']}")
    assert said["verdict"] == "diagnosed", said
    assert said["causes"][0]["id"] == "firewall-or-unreachable", said
    assert set(said["culprits"]["hosts"]) == {"node-2", "node-3"}
    assert set(said["culprits"]["ranks"]) == {1, 2}


def test_one_grid_shows_the_ranks_of_all_hosts_and_leaves_nothing_there(tmp_path: Path) -> None:
    with job_stopped_on_node_4(tmp_path) as hosts:
        watch = [str(BIN / "ddx"), "watch", "--hosts", "node-[1-4]", "--via", hosts.via, "--interval", "1"]
        said = hosts.at_desk("timeout", "--signal", "INT", "20", *watch).stdout
        wait_for("its end", lambda: not [p for name in NODES for p in below(hosts.inits[name]) if "ddx" in p])
    assert "rank 3 on node-4: stopped; ranks 0-2 on node-[1-3]: idle" in said


def test_four_hosts_that_do_not_answer_cost_neither_the_deadline_nor_the_answer(tmp_path: Path) -> None:
    """One is cut off, one refuses, one hangs in the middle of its answer, one prints something else."""
    with job_stopped_on_node_4(tmp_path, extra=("refuses", "hangs", "garbles", "cut-off")) as hosts:
        cut(hosts.spaces["cut-off"])
        os.kill(sshd_of(hosts, "refuses"), signal.SIGTERM)
        script = tmp_path / "reach"
        script.write_text(
            f"""h=$1; shift
case $h in
  hangs) {hosts.via.replace("%host", "hangs")} "$@" | head -c 900; exec sleep 60;;
  garbles) {hosts.via.replace("%host", "garbles")} head -c 30000 /dev/urandom;;
  *) exec {hosts.via.replace("%host", "$h")} "$@";;
esac
"""
        )
        named = "node-[1-4],cut-off,refuses,hangs,garbles"
        said, seconds = why(hosts, "--hosts", named, "--via", f"bash {script} %host", "--deadline", "20")
        left = [p for name in NODES for p in below(hosts.inits[name]) if "ddx" in p]
    print(f"{seconds:.1f} s, {said['headline']}")
    assert seconds < 20
    assert said["culprits"]["ranks"] == [3] and said["culprits"]["hosts"] == ["node-4"]
    assert said["looked_at"][0].startswith("4 of 8 hosts answered")
    reasons = {m["what"].split(":")[0]: m["what"] for m in said["missing"]}
    assert "timed out" in reasons["cut-off"] or "No route to host" in reasons["cut-off"], reasons
    assert "Connection refused" in reasons["refuses"]
    assert "did not finish" in reasons["hangs"]
    assert "is not an answer" in reasons["garbles"]
    assert not left, "nothing stays behind on the hosts"


def test_behind_a_gateway_hosts_give_the_same_answer_and_nothing_is_left_on_it(tmp_path: Path) -> None:
    with job_stopped_on_node_4(tmp_path, extra=("gate",)) as hosts:
        topology = tmp_path / "topology.conf"
        topology.write_text("[routes]\ndesk: gate\ngate: node-[1-4]\n")
        direct, seconds = why(hosts)
        said, seconds_through = why(hosts, gateways=topology)
        wait_for("its end", lambda: not started_for_us(hosts, "gate", *NODES))
    print(f"{seconds:.1f} s, by a gateway {seconds_through:.1f} s, {said['headline']}")
    assert said["culprits"]["ranks"] == [3] and said["culprits"]["hosts"] == ["node-4"]
    for what in ("verdict", "headline", "culprits", "causes", "looked_at", "missing"):
        assert said[what] == direct[what]
    assert not Path("/tmp/gate.gw.log").exists()


@pytest.mark.parametrize("how", ["cut off", "stopped"])
def test_a_gateway_that_is_gone_or_hangs_is_named_and_the_rest_is_judged(how: str, tmp_path: Path) -> None:
    with job_stopped_on_node_4(tmp_path, extra=("gate-1", "gate-2")) as hosts:
        topology = tmp_path / "topology.conf"
        topology.write_text("[routes]\ndesk: gate-[1-2]\ngate-1: node-[2-4]\ngate-2: node-1\n")
        stops = "true"
        if how == "cut off":
            cut(hosts.spaces["gate-2"])
        else:
            # As soon as it asks its host, in the middle of everything.
            stops = "until pgrep -x ssh; do sleep 0.1; done; pkill -STOP -f [C]lusterShell.Gateway"
        with subprocess.Popen(hosts.inside("gate-2", ["bash", "-c", stops]), stdout=subprocess.DEVNULL):
            said, seconds = why(hosts, "--deadline", "20", gateways=topology)
        left = started_for_us(hosts, "gate-1", *NODES[1:])
    print(f"{how}: {seconds:.1f} s, {said['headline']}")
    assert seconds < 30, "a deadline that counts from the last word would take more than 35"
    assert said["culprits"]["ranks"] == [3] and said["culprits"]["hosts"] == ["node-4"]
    assert said["looked_at"] == ["3 of 4 hosts answered"]
    words = "(timed out|No route to host)" if how == "cut off" else "no further output"
    assert any(re.match(f"node-1: gateway gate-2 does not answer: .*{words}", m["what"]) for m in said["missing"])
    assert not left, "nothing stays behind where the gateway works"


def test_hosts_without_ddx_give_the_same_answer_and_keep_nothing(tmp_path: Path) -> None:
    """They have an sshd and a bare Python 3; what looks at them runs here."""
    with job_stopped_on_node_4(tmp_path) as hosts:
        before = {file.name for file in Path("/tmp").iterdir()}
        direct, _ = why(hosts)
        # Neither there; and no interpreter but the system's.
        bare = f"bash {bare_hosts(hosts, tmp_path)} %host"
        said, seconds = why(hosts, "--via", bare, "--save", str(tmp_path / "bundle.tar.zst"))
        wait_for("its end", lambda: not [p for name in NODES for p in below(hosts.inits[name]) if "-I -q -u -i" in p])
        left = {file.name for file in Path("/tmp").iterdir()} - before
    print(f"{seconds:.1f} s, {said['headline']}")
    assert said["culprits"]["ranks"] == [3] and said["culprits"]["hosts"] == ["node-4"]
    for what in ("verdict", "headline", "culprits", "looked_at"):
        assert said[what] == direct[what]
    assert [cause["id"] for cause in said["causes"]] == [cause["id"] for cause in direct["causes"]]
    assert not {name for name in left if name.startswith("ddx")}
    with Bundle(tmp_path / "bundle.tar.zst") as bundle:
        assert not any(SECRET.encode() in f.read_bytes() for f in bundle.directory.rglob("*") if f.is_file())


def test_a_host_with_neither_ddx_nor_python_is_told(tmp_path: Path) -> None:
    with job_stopped_on_node_4(tmp_path) as hosts:
        script = bare_hosts(hosts, tmp_path, without_python="node-1")
        said, _ = why(hosts, "--via", f"bash {script} %host")
    assert said["looked_at"][0].startswith("3 of 4 hosts answered")
    assert said["culprits"]["ranks"] == [3]
    (reason,) = [m["what"] for m in said["missing"] if m["what"].startswith("node-1")]
    assert "python3" in reason


def bare_hosts(hosts: Hosts, directory: Path, without_python: str = "none") -> Path:
    """A script that reaches hosts as ssh does; `ddx` is not found on them."""
    script = directory / "reach"
    script.write_text(
        f"""h=$1; shift
words="$*"
words=$(sed "s,{BIN}/ddx,no-such-ddx," <<< "$words")
[ $h = {without_python} ] && words=${{words//python3/no-such-python3}}
exec {hosts.via.replace("%host", "$h")} "$words"
"""
    )
    return script


def started_for_us(hosts: Hosts, *names: str) -> list[str]:
    return [p for name in names for p in below(hosts.inits[name]) if "ddx" in p or "ClusterShell" in p]


def below(pid: int) -> list[str]:
    """The command lines of all processes of a host."""
    return [" ".join(process.cmdline()) for process in psutil.Process(pid).children(recursive=True)]
