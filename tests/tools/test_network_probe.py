"""The probe `network`: what it tries, what it makes of the answers, and that a bundle gives the same again."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from network_lan import OPEN, RECORDED, SILENT, Lan, captured, findings_of, looked, sizes
from network_lan import REFUSED as REFUSED_LINE
from process_snapshots import row, snapshot, torchrun_env

from ddx_tools.evidence.store import Store
from ddx_tools.investigation.run import investigate
from ddx_tools.investigation.session.plan import Step
from ddx_tools.investigation.single_probe import run_probe
from ddx_tools.model.diagnosis import Finding, ProbeStatus, Severity
from ddx_tools.model.errors import UsageError
from ddx_tools.probes.network.probe import PROBE
from ddx_tools.sources.host import HostCall
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.hosts.tcp_exchange import try_port
from ddx_tools.sources.raw import Raw

NCCL = Path(__file__).parents[1] / "fixtures" / "nccl"


def one(findings: list[Finding], code: str) -> Finding:
    found = [finding for finding in findings if finding.code == code]
    assert len(found) == 1, [finding.summary for finding in findings]
    return found[0]


def loud(findings: list[Finding]) -> set[str]:
    return {finding.code for finding in findings if finding.severity is not Severity.INFO}


# --- what may be asked


@pytest.mark.parametrize(
    "peer", ["-f", "--help", "a b", "node;reboot", "$(id)", "node\n", "", "-1.2.3.4", "no*de", "a" * 300]
)
def test_what_is_no_host_is_refused_before_anything_is_sent(peer: str) -> None:
    lan = Lan()
    with pytest.raises(UsageError, match="--peer"):
        captured(lan, peer=[peer])
    assert not lan.asked


@pytest.mark.parametrize("peer", ["node-2", "10.0.0.2", "fd00::2", "fe80::1%eth0", "a.b.example.org", "node_2"])
def test_names_and_addresses_of_both_kinds_are_tried(peer: str) -> None:
    assert captured(Lan(names={peer: "10.0.0.2"}), peer=[peer]).of("tried")


def test_several_peers_may_stand_in_one_word_as_a_playbook_fills_it_in() -> None:
    args = PROBE.args.model_validate({"peer": "node-2, node-3", "port": "29500"})
    assert (args.peer, args.port) == (["node-2", "node-3"], [29500])


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_what_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(UsageError, match="--port"):
        captured(Lan(), peer=["node-2"], port=[port])


def test_a_device_that_is_an_option_is_refused() -> None:
    with pytest.raises(UsageError, match="--rdma-device"):
        captured(Lan(), peer=["node-2"], rdma_device="--port=1")


def test_without_a_peer_and_without_a_job_it_says_what_to_type() -> None:
    with pytest.raises(UsageError, match="No peer is named"):
        captured(Lan(processes_here=snapshot()))


def test_without_a_peer_the_master_of_the_job_is_tried() -> None:
    env = torchrun_env(1, 2, 1) | {"MASTER_ADDR": "10.88.0.2", "MASTER_PORT": "29611"}
    lan = Lan(processes_here=snapshot(row(41, 1, "python train.py", env=env)), ports={29611: OPEN})
    found = findings_of(captured(lan))
    assert not loud(found)
    assert {finding.attributes["port"] for finding in found if finding.code == "network.peer_answers"} >= {29611}


# --- ports


def test_a_healthy_way_raises_nothing_but_what_it_is() -> None:
    found = looked(Lan(ports={29500: OPEN}), port=[29500])
    assert {finding.code for finding in found} == {"network.peer_answers", "network.path_mtu"}
    assert not loud(found)


@pytest.mark.parametrize(
    ("line", "how"),
    [
        (REFUSED_LINE, "refused"),
        (SILENT, "timed_out"),
        ("connect to {} port {} (tcp) failed: No route to host (3.1 ms)\n", "no_route"),
    ],
)
def test_the_ways_in_which_a_port_fails_are_told_apart(line: str, how: str) -> None:
    found = one(looked(Lan(ports={29500: line}), port=[29500]), "startup.endpoint_unreachable")
    assert (found.attributes["how"], found.attributes["port"], found.attributes["tried"]) == (how, 29500, True)


def test_a_host_that_does_not_answer_at_all_is_told_from_one_that_drops_a_port() -> None:
    kernel_port = (32768 + 60999) // 2
    gone = looked(Lan(ports={29500: SILENT, kernel_port: SILENT}, pings_arrive=0), port=[29500])
    cut = looked(Lan(ports={29500: SILENT}), port=[29500])
    assert all(not finding.attributes["host_answers"] for finding in gone)
    assert one(cut, "startup.endpoint_unreachable").attributes["host_answers"] is True


@pytest.mark.parametrize(
    ("there", "pings", "back", "named"),
    [
        ({40_000: SILENT}, 0, {}, ["node-2"]),
        ({40_000: SILENT, 46_883: SILENT}, 100, {40_000: SILENT, 46_883: SILENT}, []),
        ({40_000: SILENT, 46_883: SILENT}, 0, None, []),
        ({40_000: SILENT}, 0, None, ["node-2"]),
        ({40_000: SILENT, 46_883: SILENT}, 100, None, ["node-2"]),
    ],
    ids=["one way", "neither way", "nobody tried the way back", "another port answers", "pings arrive"],
)
def test_a_host_that_was_looked_at_and_is_silent_is_named_where_it_gets_answers_itself(
    there: dict[int, str], pings: int, back: dict[int, str] | None, named: list[str]
) -> None:
    forth = captured(Lan(ports=there, pings_arrive=pings), peer=["10.88.0.2"], port=[40_000])
    here = captured(Lan(name="node-2", ports=back or {}), peer=["10.88.0.1"], port=[40_000])
    looks = [
        {"host": host, "topic": "interface", "subject": "eth0", "facts": json.dumps({"addresses": [address]})}
        for host, address in (("node-1", "10.88.0.1"), ("node-2", "10.88.0.2"))
    ]
    with Store() as store:
        store.insert({"host_facts": [look | {"source": "raw/interfaces.json", "text": ""} for look in looks]})
        store.insert(PROBE.parse(forth))
        if back is not None:
            store.insert(PROBE.parse(here))
        found = PROBE.analyse(store)
    silent = [finding for finding in found if finding.code == "network.host_silent"]
    assert [host for finding in silent for host in finding.hosts] == named


def test_a_name_that_means_loopback_reaches_nobody_else() -> None:
    lan = Lan(names={"node-2": "127.0.1.1"}, local=True, ports={29500: REFUSED_LINE})
    found = looked(lan, peer=["node-2"], port=[29500])
    assert one(found, "network.hostname_loopback").attributes["of"] == "peer"
    assert one(found, "startup.endpoint_unreachable").attributes["loopback"] is True


def test_a_name_without_an_address_is_unresolved() -> None:
    found = looked(Lan(), peer=["node-9"], port=[29500])
    assert one(found, "startup.endpoint_unreachable").attributes["how"] == "unresolved"


LISTENS = 'LISTEN 0 128 0.0.0.0:29500 0.0.0.0:* users:(("python3",pid=41,fd=3))\n'


def test_a_stranger_on_the_masters_port_is_named_and_the_jobs_own_rank_is_not() -> None:
    here = Lan(ports={29500: OPEN}, local=True, listeners=LISTENS)
    other, rank = row(41, 1, "python3 -m http.server 29500"), row(41, 1, "python train.py", env=torchrun_env(0, 2, 2))
    stranger = looked(replace(here, processes_here=snapshot(other)), port=[29500])
    own = looked(replace(here, processes_here=snapshot(rank)), port=[29500])
    assert one(stranger, "startup.port_in_use").attributes["pid"] == 41
    assert not loud(own)


def test_a_listener_that_this_user_may_not_see_is_nobodys_fault() -> None:
    hidden = Lan(ports={29500: OPEN}, local=True, listeners="LISTEN 0 128 0.0.0.0:29500 0.0.0.0:*\n")
    assert not loud(looked(hidden, port=[29500]))


# --- packets


def test_large_packets_that_vanish_are_told_from_those_that_somebody_calls_too_long() -> None:
    silent, told = Lan(path_mtu=1450), Lan(path_mtu=1450, mtu_is_told=True)
    differs = one(looked(silent), "network.mtu_differs")
    assert (differs.attributes["arrives_bytes"], differs.attributes["vanishes_bytes"]) == (1450, 1451)
    assert "1451 bytes (1423 of data + 28 of headers)" in differs.summary
    heard = looked(told)
    assert not loud(heard)
    way = one(heard, "network.path_mtu").attributes
    assert (way["arrives_bytes"], way["told_by"]) == (1450, "hop")
    assert len(sizes(told)) < len(sizes(silent))


@pytest.mark.parametrize(("arrive", "warned"), [(100, False), (99, False), (97, True), (50, True)])
def test_lost_pings_count_from_the_second_on(arrive: int, warned: bool) -> None:
    assert ("network.packet_loss" in loud(looked(Lan(pings_arrive=arrive)))) is warned


def test_a_host_that_answers_no_ping_has_no_mtu_and_no_loss() -> None:
    lan = Lan(pings_arrive=0, ports={29500: OPEN})
    assert {finding.code for finding in looked(lan, port=[29500])} == {"network.peer_answers"}
    assert not sizes(lan)


def test_where_most_packets_are_lost_no_size_is_blamed() -> None:
    lan = Lan(pings_arrive=50, path_mtu=1450)
    assert loud(looked(lan)) == {"network.packet_loss"}
    assert not sizes(lan)


@pytest.mark.parametrize(("name", "warned"), [("iperf3_clean.json", False), ("iperf3_lossy.json", True)])
def test_iperf3_is_measured_and_judged_by_what_tcp_sent_again(name: str, warned: bool) -> None:
    lan = Lan(outputs={"iperf3": (RECORDED / name).read_bytes()})
    found = looked(lan, iperf3_port=5201)
    assert one(found, "network.throughput").attributes["gbit_per_s"] > 0
    assert ("network.packet_loss" in loud(found)) is warned


def test_to_an_address_of_its_own_a_host_measures_what_was_asked_and_blames_no_network() -> None:
    outputs = {"iperf3": (RECORDED / "iperf3_lossy.json").read_bytes()}
    outputs["ib_write_bw"] = (RECORDED / "ib_write_bw_rxe.txt").read_bytes()
    here = Lan(outputs=outputs, local=True)
    found = looked(here, iperf3_port=5201, rdma_device="rxe0")
    speeds = [finding for finding in found if finding.code == "network.throughput"]
    assert {finding.attributes["tool"] for finding in speeds} == {"iperf3", "perftest"}
    assert all("itself: not over a network" in finding.summary for finding in speeds)
    assert not loud(found) and not sizes(here)
    assert not any("iperf3" in asked or "ib_write" in asked for asked in _asked(Lan(local=True, outputs=outputs)))


def _asked(lan: Lan) -> list[str]:
    """What a probe asks to which nobody gave more than a peer."""
    looked(lan)
    return lan.asked


def test_a_second_in_which_the_host_was_busy_is_no_lossy_network() -> None:
    told = json.loads((RECORDED / "iperf3_clean.json").read_bytes())
    again = int(told["end"]["sum_sent"]["bytes"] / told["start"]["tcp_mss_default"] / 100)
    quiet = told["intervals"][0]["sum"] | {"retransmits": 0}
    told["intervals"] = [{"sum": quiet | {"retransmits": again}}, {"sum": quiet}, {"sum": quiet}]
    told["end"]["sum_sent"]["retransmits"] = again
    lost = one(looked(Lan(outputs={"iperf3": json.dumps(told).encode()}), iperf3_port=5201), "network.packet_loss")
    assert lost.severity is Severity.NOTICE


def test_iperf3_without_a_server_is_no_measurement() -> None:
    lan = Lan(outputs={"iperf3": (RECORDED / "iperf3_refused.json").read_bytes()})
    assert not [finding for finding in looked(lan, iperf3_port=5201) if finding.code == "network.throughput"]


def test_rdma_bandwidth_is_measured_with_the_device_that_is_named() -> None:
    lan = Lan(outputs={"ib_write_bw": (RECORDED / "ib_write_bw_rxe.txt").read_bytes()})
    found = one(looked(lan, rdma_device="rxe0"), "network.throughput")
    assert (found.attributes["tool"], found.attributes["device"]) == ("perftest", "rxe0")


# --- what is not there


@pytest.mark.parametrize("program", ["ping", "ip", "iperf3", "ib_write_bw"])
def test_a_tool_that_is_absent_is_named_with_how_to_get_it(program: str) -> None:
    given = dict.fromkeys(("iperf3", "ib_write_bw"), b"")
    lan = Lan(absent=frozenset({program}), ports={29500: OPEN}, outputs=given)
    raw = captured(lan, peer=["10.88.0.2"], port=[29500], iperf3_port=5201, rdma_device="mlx5_0")
    assert raw.status is ProbeStatus.PARTIAL
    assert [said for said in raw.problems if program in said and "apt-get install" in said and "dnf install" in said]
    assert not loud(findings_of(raw))


def test_the_absent_tool_of_a_second_peer_is_not_named_twice() -> None:
    raw = captured(Lan(absent=frozenset({"ping"})), peer=["10.88.0.2", "10.88.0.3"])
    assert len(raw.problems) == 1


@pytest.mark.parametrize("report", ["ras_2.24.txt", "ras_2.28.9.json"])
def test_nccls_ras_is_asked_where_it_listens(report: str) -> None:
    lan = Lan(ras=(NCCL / report).read_bytes())
    assert "collective.missing_ranks" in {finding.code for finding in looked(lan)}
    assert "ras 127.0.0.1:28028" in lan.asked


# --- captures


@pytest.mark.needs("tshark")
def test_a_capture_names_connections_never_made_and_readers_that_do_not_read() -> None:
    found = findings_of(PROBE.capture(LocalHost("unknown"), PROBE.args(target=[str(RECORDED / "faults.pcap")])))
    hows = {f.attributes["port"]: f.attributes["how"] for f in found if f.code == "startup.endpoint_unreachable"}
    assert hows == {29500: "timed_out", 29400: "refused"}
    assert one(found, "network.unread_bytes").attributes["local"] == "10.88.0.2:6000"
    assert "network.packet_loss" not in {finding.code for finding in found}


@pytest.mark.needs("tshark")
def test_a_capture_counts_what_was_sent_again() -> None:
    found = findings_of(PROBE.capture(LocalHost("unknown"), PROBE.args(target=[str(RECORDED / "lossy.pcap")])))
    loss = one(found, "network.packet_loss")
    assert loss.attributes["rate"] == pytest.approx(5 / 124, abs=1e-6)
    assert loud(found) == {"network.packet_loss"}


def test_a_file_that_is_no_capture_is_refused() -> None:
    with pytest.raises(UsageError, match="no packet capture"):
        PROBE.capture(LocalHost("unknown"), PROBE.args(target=[str(RECORDED / "ping_all.txt")]))


@pytest.mark.needs("tshark")
def test_a_capture_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = (RECORDED / "faults.pcap").read_bytes()
    (tmp_path / "cut.pcap").write_bytes(whole[: len(whole) // 2])
    raw = PROBE.capture(LocalHost("unknown"), PROBE.args(target=[str(tmp_path / "cut.pcap")]))
    assert [said for said in raw.problems if "did not read all of it" in said]
    assert findings_of(raw)


# --- again, out of a bundle


def test_a_bundle_gives_the_same_findings_again(tmp_path: Path) -> None:
    lan = Lan(path_mtu=1450, pings_arrive=90, ports={29500: SILENT})
    step = Step(PROBE, {"target": [], "peer": ["10.88.0.2"], "port": [29500]})
    live, _ = run_probe(step, save=tmp_path / "bundle", machine=lambda _: lan)
    again = investigate([str(tmp_path / "bundle")])
    assert {(f.code, f.summary) for f in again.findings} == {(f.code, f.summary) for f in live.findings}
    assert {"network.mtu_differs", "network.packet_loss", "startup.endpoint_unreachable"} <= loud(again.findings)


def test_what_a_bundle_does_not_hold_is_not_healthy(tmp_path: Path) -> None:
    step = Step(PROBE, {"target": [], "peer": ["10.88.0.2"]})
    run_probe(step, save=tmp_path / "bundle", machine=lambda _: Lan())
    result, _ = run_probe(Step(PROBE, {"target": [str(tmp_path / "bundle")], "peer": ["10.88.0.9"]}))
    assert result.status is ProbeStatus.NOT_RECORDED


# --- one connection


def test_a_port_that_is_open_and_one_that_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        closed = listening.getsockname()[1]
        assert b"succeeded!" in try_port("127.0.0.1", closed, 5.0)
    assert b"failed: Connection refused" in try_port("127.0.0.1", closed, 5.0)
    assert b"answers: Connection refused" in try_port("127.0.0.1", closed, 5.0, listens=False)


def test_a_name_is_no_address_to_connect_to() -> None:
    reply = LocalHost().answer(HostCall("tcp", "localhost 80", {"timeout_s": 1.0, "listens": True}))
    assert reply.error == "failed" and "is not an address" in reply.message


@given(
    data=st.binary(max_size=200) | st.sampled_from([b"[]", b"{}", b"null", b'{"processes": 1}', b'{"processes": [1]}'])
)
def test_damaged_answers_of_a_bundle_break_nothing(data: bytes) -> None:
    raw = captured(Lan(ports={29500: OPEN}, local=True, listeners=LISTENS), peer=["10.88.0.2"], port=[29500])
    damaged = [replace(item, data=data) for item in raw.items]
    for kind in {item.kind for item in raw.items}:
        items = [new if old.kind == kind else old for old, new in zip(raw.items, damaged, strict=True)]
        PROBE.parse(Raw("node-1", items))
