"""Faults between two hosts, made for real in network namespaces, and `ddx network` in the midst of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ddx_evals.lab.wires import Wire, wired
from ddx_tools.investigation.run import investigate

BIN = Path(sys.executable).parent

pytestmark = [pytest.mark.e2e, pytest.mark.needs("linux", "root", "ip", "ping", "iptables", "getent", "ss", "unshare")]

PORT = "29500"
QUICK = ("--timeout-s", "1")
_LISTENS = """
import socket, sys
with socket.create_server(("", int(sys.argv[1]))):
    print("ready", flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True)
class Lan:
    """Two hosts with a switch between them, by their network namespaces."""

    here: str
    there: str
    here_address: str = "10.78.0.1"
    there_address: str = "10.78.0.2"

    def run(self, where: str, *argv: str, hosts: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program on one of them; with `hosts`, that is its /etc/hosts."""
        names = ("unshare", "--mount", "bash", "-ec", 'mount --bind "$0" /etc/hosts; exec "$@"', str(hosts))
        inside = ["ip", "netns", "exec", where, *(names if hosts else ()), *argv]
        return subprocess.run(inside, capture_output=True, text=True, check=False, timeout=60)

    def looked(self, *options: str, hosts: Path | None = None) -> list[dict[str, Any]]:
        """Findings of `ddx network`, asked on `here`."""
        return list(
            json.loads(self.run(self.here, ddx(), "network", *options, "--json", hosts=hosts).stdout)["findings"]
        )

    @contextmanager
    def listening(self, where: str, port: str = PORT) -> Iterator[int]:
        """A program that listens there; its pid."""
        argv = ["ip", "netns", "exec", where, sys.executable, "-c", _LISTENS, port]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
            try:
                assert running.stdout is not None
                assert running.stdout.readline() == "ready\n"
                yield running.pid
            finally:
                running.kill()


def ddx() -> str:
    return str(BIN / "ddx")


@contextmanager
def two_hosts(mtu: int = 1500, mtu_of_switch: int | None = None) -> Iterator[Lan]:
    """With these MTUs at the ends, and at the port of the switch that leads to `there`."""
    here = Wire("here", Lan.here_address, mtu)
    there = Wire("there", Lan.there_address, mtu, mtu_of_switch)
    with wired([here, there]) as namespaces:
        yield Lan(namespaces["here"], namespaces["there"])


def drop(lan: Lan, *rule: str) -> None:
    """A rule of the firewall on `there`."""
    done = lan.run(lan.there, "iptables", "-A", "INPUT", *rule)
    assert done.returncode == 0, done.stderr


def one(findings: list[dict[str, Any]], code: str, **where: Any) -> dict[str, Any]:
    found = [item for item in findings if item["code"] == code and where.items() <= item["attributes"].items()]
    assert len(found) == 1, findings
    return found[0]


def loud(findings: list[dict[str, Any]]) -> set[str]:
    return {item["code"] for item in findings if item["severity"] != "info"}


def leading_cause(*paths: Path) -> str:
    """What `ddx why` puts first."""
    return investigate([str(path) for path in paths]).diagnose().causes[0].id


def job_log(lan: Lan, log: Path, node_rank: str, master: str, hosts: Path | None = None) -> Path:
    """What torchrun of one of two nodes prints, started on `here`, until it gives up."""
    script = log.with_suffix(".py")
    script.write_text("print('started')\n")
    launcher = (str(BIN / "torchrun"), "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-conf", "timeout=1")
    node = ("--node-rank", node_rank, "--master-addr", master, "--master-port", PORT)
    done = lan.run(lan.here, *launcher, *node, str(script), hosts=hosts)
    assert done.returncode != 0
    log.write_text(done.stdout + done.stderr)
    return log


def test_a_healthy_way_raises_nothing() -> None:
    with two_hosts() as lan, lan.listening(lan.there):
        found = lan.looked("--peer", lan.there_address, "--port", PORT)
    assert not loud(found)
    assert one(found, "network.path_mtu")["attributes"]["arrives_bytes"] == 1500
    one(found, "network.peer_answers", port=int(PORT), chosen_by_kernel=False)


# --- the size of packets


def test_a_switch_that_drops_large_packets_in_silence_is_named(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    with two_hosts(mtu=9000, mtu_of_switch=1500) as lan:
        found = lan.looked("--peer", lan.there_address, *QUICK, "--save", str(bundle))
    differs = one(found, "network.mtu_differs")
    assert (differs["attributes"]["arrives_bytes"], differs["attributes"]["vanishes_bytes"]) == (1500, 1501)
    assert "1501 bytes (1473 of data + 28 of headers)" in differs["summary"]
    assert leading_cause(bundle) == "mtu-mismatch"
    again = subprocess.run([ddx(), "network", str(bundle), "--json"], capture_output=True, check=False, timeout=60)
    assert again.returncode == 1
    assert [item["summary"] for item in json.loads(again.stdout)["findings"]] == [item["summary"] for item in found]


@pytest.mark.long
def test_one_large_mtu_everywhere_raises_nothing() -> None:
    with two_hosts(mtu=9000) as lan:
        found = lan.looked("--peer", lan.there_address, *QUICK)
    assert not loud(found)
    assert one(found, "network.path_mtu")["attributes"]["arrives_bytes"] == 9000


@pytest.mark.long
def test_a_smaller_mtu_that_the_own_host_knows_of_raises_nothing() -> None:
    with two_hosts() as lan:
        lan.run(lan.here, "ip", "route", "add", lan.there_address, "dev", "eth0", "mtu", "1412")
        found = lan.looked("--peer", lan.there_address, *QUICK)
    assert not loud(found)
    way = one(found, "network.path_mtu")["attributes"]
    assert (way["arrives_bytes"], way["told_by"]) == (1412, "host")


# --- loss


@pytest.mark.long
def test_lost_pings_are_counted(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    with two_hosts() as lan:
        drop(lan, "-p", "icmp", "-m", "statistic", "--mode", "nth", "--every", "10", "--packet", "5", "-j", "DROP")
        found = lan.looked("--peer", lan.there_address, "--save", str(bundle))
    assert one(found, "network.packet_loss")["attributes"]["rate"] == pytest.approx(0.1)
    assert one(found, "network.path_mtu")["attributes"]["arrives_bytes"] == 1500
    assert leading_cause(bundle) == "packet-loss"


@pytest.mark.long
@pytest.mark.alone  # a busy machine sends again what was not lost
@pytest.mark.needs("iperf3", "tc")
@pytest.mark.parametrize("lossy", [True, False])
def test_what_tcp_sends_again_is_counted_where_packets_are_lost(lossy: bool) -> None:
    server = ["iperf3", "-s", "-1", "--forceflush"]
    with two_hosts() as lan:
        # As fast as the processor can, the receiving host has no room for all of it: that is loss, too.
        paced = ("tbf", "rate", "500mbit", "burst", "256kb", "latency", "400ms")
        assert lan.run(lan.here, "tc", "qdisc", "add", "dev", "eth0", "root", *paced).returncode == 0
        every = ("-m", "statistic", "--mode", "nth", "--every", "300", "--packet", "9", "-j", "DROP")
        if lossy:
            drop(lan, "-p", "tcp", "--dport", "5201", *every)
        argv = ["ip", "netns", "exec", lan.there, *server]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as serving:
            try:
                assert serving.stdout is not None
                assert any("listening" in line for line in serving.stdout)
                found = lan.looked("--peer", lan.there_address, "--iperf3-port", "5201", *QUICK)
            finally:
                serving.kill()
    assert one(found, "network.throughput")["attributes"]["gbit_per_s"] > 0
    warned = [item for item in found if item["severity"] == "warning"]
    assert {item["code"] for item in warned} == ({"network.packet_loss"} if lossy else set())


# --- ports


def test_a_port_that_a_firewall_drops_is_told_from_one_on_which_nobody_listens(tmp_path: Path) -> None:
    options = ("--peer", "10.78.0.2", "--port", PORT, *QUICK)
    with two_hosts() as lan:
        nobody = lan.looked(*options, "--save", str(tmp_path / "nobody"))
        drop(lan, "-p", "tcp", "--dport", PORT, "-j", "DROP")
        dropped = lan.looked(*options, "--save", str(tmp_path / "dropped"))
    assert one(nobody, "startup.endpoint_unreachable")["attributes"]["how"] == "refused"
    cut = one(dropped, "startup.endpoint_unreachable")["attributes"]
    assert (cut["how"], cut["host_answers"]) == ("timed_out", True)
    assert leading_cause(tmp_path / "dropped") == "firewall-or-unreachable"
    assert leading_cause(tmp_path / "nobody") != "firewall-or-unreachable"


@pytest.mark.long
@pytest.mark.needs("torch")
@pytest.mark.parametrize("dropped", [True, False])
def test_what_torchrun_says_in_the_same_words_is_told_apart_by_trying_the_port(tmp_path: Path, dropped: bool) -> None:
    with two_hosts() as lan:
        if dropped:
            drop(lan, "-p", "tcp", "--dport", PORT, "-j", "DROP")
        lan.looked("--peer", lan.there_address, "--port", PORT, *QUICK, "--save", str(tmp_path / "tried"))
        log = job_log(lan, tmp_path / "job.log", "1", lan.there_address)
    assert "timed out" in log.read_text()
    assert (leading_cause(log, tmp_path / "tried") == "firewall-or-unreachable") is dropped


@pytest.mark.long
def test_a_firewall_that_opens_the_masters_port_only_is_named(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    with two_hosts() as lan, lan.listening(lan.there):
        drop(lan, "-p", "tcp", "!", "--dport", PORT, "-j", "DROP")
        found = lan.looked("--peer", lan.there_address, "--port", PORT, *QUICK, "--save", str(bundle))
    one(found, "network.peer_answers", port=int(PORT))
    assert one(found, "startup.endpoint_unreachable")["attributes"]["stage"] == "peers"
    assert leading_cause(bundle) == "firewall-or-unreachable"


@pytest.mark.long
def test_a_firewall_that_rejects_is_no_route() -> None:
    with two_hosts() as lan:
        drop(lan, "-p", "tcp", "--dport", PORT, "-j", "REJECT", "--reject-with", "icmp-admin-prohibited")
        found = lan.looked("--peer", lan.there_address, "--port", PORT, *QUICK)
    assert one(found, "startup.endpoint_unreachable")["attributes"]["how"] == "no_route"


@pytest.mark.long
def test_who_holds_the_masters_port_on_this_host_is_named(tmp_path: Path) -> None:
    options = ("--peer", "10.78.0.1", "--port", PORT, *QUICK)
    with two_hosts() as lan:
        with lan.listening(lan.here) as pid:
            taken = lan.looked(*options, "--save", str(tmp_path / "taken"))
        with lan.listening(lan.here, "29501"):
            free = lan.looked(*options)
    assert one(taken, "startup.port_in_use")["attributes"]["pid"] == pid
    assert leading_cause(tmp_path / "taken") == "port-in-use"
    assert "startup.port_in_use" not in loud(free)


@pytest.mark.long
@pytest.mark.needs("torch")
def test_torchrun_whose_port_is_taken_is_diagnosed_by_its_log_and_who_holds_it(tmp_path: Path) -> None:
    with two_hosts() as lan, lan.listening(lan.here):
        lan.looked("--peer", lan.here_address, "--port", PORT, *QUICK, "--save", str(tmp_path / "tried"))
        log = job_log(lan, tmp_path / "job.log", "0", lan.here_address)
    assert leading_cause(log, tmp_path / "tried") == "port-in-use"


# --- interfaces


@pytest.mark.long
@pytest.mark.needs("torch")
def test_an_interface_that_is_not_there_is_named_and_one_that_is_does_no_harm(tmp_path: Path) -> None:
    script, log = tmp_path / "train.py", tmp_path / "job.log"
    script.write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\n")
    torchrun = (str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", str(script))
    with two_hosts() as lan:
        right = lan.run(lan.here, "env", "GLOO_SOCKET_IFNAME=eth0", *torchrun)
        wrong = lan.run(lan.here, "env", "GLOO_SOCKET_IFNAME=ib0", *torchrun)
    assert (right.returncode, wrong.returncode) == (0, 1), right.stderr
    log.write_text(wrong.stdout + wrong.stderr)
    assert leading_cause(log) == "wrong-network-interface"


# --- names


@pytest.mark.long
def test_a_peer_whose_name_means_loopback_is_named(tmp_path: Path) -> None:
    hosts, options = tmp_path / "hosts", ("--peer", "trainer-2", "--port", PORT, *QUICK)
    with two_hosts() as lan, lan.listening(lan.there):
        hosts.write_text("127.0.1.1 trainer-2\n")
        wrong = lan.looked(*options, "--save", str(tmp_path / "wrong"), hosts=hosts)
        hosts.write_text(f"{lan.there_address} trainer-2\n")
        right = lan.looked(*options, hosts=hosts)
    name = one(wrong, "network.hostname_loopback")["attributes"]
    assert (name["name"], name["addresses"]) == ("trainer-2", ["127.0.1.1"])
    assert leading_cause(tmp_path / "wrong") == "rendezvous-wrong-endpoint"
    assert not loud(right)


@pytest.mark.long
@pytest.mark.needs("torch")
def test_torchrun_whose_master_means_loopback_is_diagnosed_by_its_log_and_the_try(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.1.1 trainer-2\n")
    with two_hosts() as lan:
        tried = ("--peer", "trainer-2", "--port", PORT, *QUICK, "--save", str(tmp_path / "tried"))
        lan.looked(*tried, hosts=hosts)
        log = job_log(lan, tmp_path / "job.log", "1", "trainer-2", hosts=hosts)
    assert leading_cause(log, tmp_path / "tried") == "rendezvous-wrong-endpoint"


@pytest.mark.long
def test_a_name_that_nobody_knows_is_named(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    with two_hosts() as lan:
        found = lan.looked("--peer", "trainer-2", "--port", PORT, *QUICK, hosts=hosts)
    assert one(found, "startup.endpoint_unreachable")["attributes"]["how"] == "unresolved"
