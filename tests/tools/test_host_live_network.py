"""A live look at the network: which interface is taken, the host's own name, lost packets, bytes that nobody reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from host_looks import findings_of, findings_of_hosts, interface, interfaces, name, processes, text
from host_reading import RECORDED, codes, findings_in, one
from hypothesis import given
from hypothesis import strategies as st
from process_snapshots import row, snapshot, torchrun_env

from ddx_tools.diagnosis.diagnose import diagnose
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.model.diagnosis import Evidence, Finding, Severity, Verdict
from ddx_tools.probes.host.text_rows import fact_rows
from ddx_tools.sources.raw import RawItem

LO, ETH, DOCKER = interface("lo", "127.0.0.1"), interface("eth0", "10.0.0.7"), interface("docker0", "172.17.0.1")
IB = interface("ib0", "10.1.0.7")


def job(world_size: int = 2, **variables: str) -> RawItem:
    """Two ranks here, of as many as the world has."""
    envs = [torchrun_env(rank, world_size, 2) | variables for rank in (0, 1)]
    return processes(snapshot(*(row(41 + rank, 1, "python train.py", env=env) for rank, env in enumerate(envs))))


def chosen(found: list[Finding]) -> dict[str, str]:
    told = [one for one in found if one.code == "network.interface_chosen"]
    return {str(one.attributes["library"]): str(one.attributes["interface"]) for one in told}


@pytest.mark.parametrize(
    ("rows", "variables", "nccl"),
    [
        ((LO, DOCKER, ETH), {}, "eth0"),
        ((LO, DOCKER, ETH, IB), {}, "ib0"),
        ((LO, DOCKER), {}, "docker0"),
        ((LO,), {}, "lo"),
        ((LO, ETH, interface("eth1", "10.2.0.7")), {"NCCL_SOCKET_IFNAME": "eth1"}, "eth1"),
        ((LO, ETH, interface("eth01", "10.2.0.7")), {"NCCL_SOCKET_IFNAME": "eth0"}, "eth0, eth01"),
        ((LO, ETH, interface("eth01", "10.2.0.7")), {"NCCL_SOCKET_IFNAME": "=eth0"}, "eth0"),
        ((LO, DOCKER, ETH), {"NCCL_SOCKET_IFNAME": "^docker,lo"}, "eth0"),
        ((LO, interface("eth1", "10.2.0.7", running=False), ETH), {}, "eth0"),
        ((LO, interface("eth1"), ETH), {}, "eth0"),
    ],
)
def test_which_interface_nccl_takes(rows: tuple[dict[str, Any], ...], variables: dict[str, str], nccl: str) -> None:
    found = findings_of(job(2, **variables), interfaces(*rows), name("node-1", "10.0.0.7"))
    assert chosen(found)["nccl"] == nccl


@pytest.mark.parametrize(
    ("addresses", "variables", "gloo"),
    [
        (("10.0.0.7",), {}, "eth0"),
        (("127.0.1.1",), {}, "lo"),
        (("203.0.113.9",), {}, "lo"),
        ((), {}, "lo"),
        (("127.0.1.1",), {"GLOO_SOCKET_IFNAME": "eth0"}, "eth0"),
    ],
)
def test_which_interface_gloo_takes(addresses: tuple[str, ...], variables: dict[str, str], gloo: str) -> None:
    found = findings_of(job(2, **variables), interfaces(LO, ETH), name("node-1", *addresses))
    assert chosen(found)["gloo"] == gloo


@pytest.mark.parametrize(("world_size", "severity"), [(2, Severity.INFO), (16, Severity.WARNING)])
def test_a_name_that_means_loopback_matters_to_a_job_of_several_hosts(world_size: int, severity: Severity) -> None:
    found = findings_of(job(world_size), interfaces(LO, ETH), name("node-1", "127.0.1.1"))
    assert one(found, "network.hostname_loopback").severity is severity
    wrong = [finding for finding in found if finding.code == "startup.interface_unusable"]
    assert [finding.attributes["library"] for finding in wrong] == (["gloo"] if world_size > 2 else [])


def test_a_name_that_means_loopback_is_no_matter_where_the_interface_is_chosen() -> None:
    found = findings_of(job(16, GLOO_SOCKET_IFNAME="eth0"), interfaces(LO, ETH), name("node-1", "127.0.1.1"))
    assert codes(found) == set()


def met_at(name_of_peer: str, *addresses: str) -> RawItem:
    item = name(name_of_peer, *addresses)
    item.facts["of"] = "peer"
    return item


@pytest.mark.parametrize(
    ("addresses", "told"), [(("127.0.1.1",), True), (("10.0.0.9", "127.0.1.1"), False), ((), False)]
)
def test_the_name_of_the_meeting_point_that_means_this_host(addresses: tuple[str, ...], told: bool) -> None:
    found = findings_of(job(16), interfaces(LO, ETH), name("node-1", "10.0.0.7"), met_at("node-0", *addresses))
    assert ("network.hostname_loopback" in codes(found)) is told
    if told:
        said = one(found, "network.hostname_loopback")
        assert (said.attributes["name"], said.attributes["of"], said.hosts) == ("node-0", "peer", ["node-1"])


def test_a_variable_that_names_no_interface() -> None:
    found = findings_of(job(NCCL_SOCKET_IFNAME="bond7"), interfaces(LO, ETH), name("node-1", "10.0.0.7"))
    wrong = one(found, "startup.interface_unusable")
    assert (wrong.attributes["value"], wrong.severity) == ("bond7", Severity.NOTICE)


@pytest.mark.parametrize(
    ("then", "lost"),
    [
        ({"received": 11_000, "receive_drops": 7_500}, True),
        ({"received": 11_000, "receive_drops": 7_003}, False),
        ({"received": 500_000, "receive_drops": 7_020}, False),
    ],
)
def test_an_interface_that_drops_packets_while_one_looks(then: dict[str, int], lost: bool) -> None:
    before = interfaces(interface("eth0", "10.0.0.7", received=10_000, receive_drops=7_000))
    found = findings_of(before, interfaces(interface("eth0", "10.0.0.7", **then)))
    assert codes(found) == ({"network.packet_loss"} if lost else set())


TCP = (
    "Tcp: RtoAlgorithm RtoMin RtoMax MaxConn InSegs OutSegs RetransSegs InErrs\n"
    "Tcp: 1 200 120000 -1 9 {sent} {again} 0\n"
)


@pytest.mark.parametrize(("again", "lost"), [(900, True), (560, False), (500, False)])
def test_how_much_tcp_sent_again_while_one_looked(again: int, lost: bool) -> None:
    first, then = TCP.format(sent=100_000, again=500), TCP.format(sent=120_000, again=again)
    found = findings_of(job(), text(first), text(then))
    assert codes(found) == ({"network.packet_loss"} if lost else set())
    assert codes(findings_of(job(), text(then))) == set()


def test_the_default_route() -> None:
    route = (
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n"
        "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
    )
    facts = fact_rows(route.encode(), "route", "route")
    assert [(fact["topic"], fact["subject"], fact["facts"]) for fact in facts] == [
        ("route", "eth0", '{"gateway": "192.0.2.1"}')
    ]


# --- connections


def test_both_ends_of_a_connection_that_one_does_not_read() -> None:
    ends = [(RECORDED / f"ss_zero_window_{end}.txt").read_text() for end in ("reader", "sender")]
    found = one(findings_in("\n".join(ends)), "network.unread_bytes")
    assert found.severity is Severity.NOTICE
    told = {key: found.attributes[key] for key in ("unread_bytes", "unsent_bytes", "pid", "window_shut")}
    assert told == {"unread_bytes": 127480, "unsent_bytes": 33624, "pid": 6561, "window_shut": True}


def test_one_end_at_one_moment_is_no_more_than_information() -> None:
    found = one(findings_in((RECORDED / "ss_zero_window_reader.txt").read_text()), "network.unread_bytes")
    assert found.severity is Severity.INFO


def test_a_shut_window_is_no_loss() -> None:
    sender = (RECORDED / "ss_zero_window_sender.txt").read_text().replace("backoff:2", "backoff:5")
    assert "network.packet_loss" not in codes(findings_in(sender))
    assert "network.packet_loss" in codes(findings_in(sender.replace("timer:(persist,", "timer:(on,")))


SS = 'ESTAB {unread} {unsent} {own} {peer} users:(("python3",pid={pid},fd=9))\n\t cubic rto:204 mss:1448 cwnd:10\n'


def pair(unread: int, unsent: int = 0) -> RawItem:
    reader = SS.format(unread=unread, unsent=0, own="[::ffff:10.0.0.7]:5000", peer="[::ffff:10.0.0.7]:6000", pid=42)
    sender = SS.format(unread=0, unsent=unsent, own="10.0.0.7:6000", peer="10.0.0.7:5000", pid=41)
    return text(reader + sender)


def test_the_rank_that_does_not_read_is_named_with_its_peer() -> None:
    found = one(findings_of(job(), pair(4096, 9000), pair(4096, 9000)), "network.unread_bytes")
    assert (found.ranks, found.attributes["peer_rank"], found.severity) == ([1], 0, Severity.NOTICE)


def test_a_rank_that_reads_between_two_looks_is_well() -> None:
    assert codes(findings_of(job(), pair(4096), pair(100))) == set()
    assert codes(findings_of(job(), pair(4096), pair(0))) == set()


def test_connections_of_others_are_nobodys_business() -> None:
    found = findings_of(
        job(), *(text(SS.format(unread=9, unsent=0, own="1.1.1.1:1", peer="2.2.2.2:2", pid=7)) for _ in "12")
    )
    assert codes(found) == set()


SYN_SENT = (
    'SYN-SENT 0 1 {own}:44248 {peer} users:(("python3",pid=41,fd=13))\n\t cubic rto:8000 backoff:{backoff} mss:524 '
    "cwnd:1 segs_out:4 unacked:1 retrans:1/{again} lost:1\n"
)


def asking(own: str, peer: str, backoff: int) -> RawItem:
    return text(SYN_SENT.format(own=own, peer=peer, backoff=backoff, again=backoff))


STANDS = text("ESTAB 0 0 10.0.0.7:29500 10.0.0.9:51844\n\t cubic rto:204 mss:1448 cwnd:10\n")


def test_a_host_is_not_named_by_one_asker_who_never_reached_it() -> None:
    found = findings_of_hosts(
        left=[job(4), interfaces(LO, ETH), asking("10.0.0.7", "10.0.0.9:37411", 3)],
        right=[interfaces(LO, interface("eth0", "10.0.0.9"))],
    )
    assert codes(found) == {"startup.endpoint_unreachable"}


def test_a_host_that_two_others_ask_in_vain_is_named() -> None:
    found = findings_of_hosts(
        left=[job(4), interfaces(LO, ETH), asking("10.0.0.7", "10.0.0.9:37411", 3)],
        middle=[interfaces(LO, interface("eth0", "10.0.0.8")), asking("10.0.0.8", "10.0.0.9:40117", 3)],
        right=[interfaces(LO, interface("eth0", "10.0.0.9"))],
    )
    silent = [finding.hosts for finding in found if finding.code == "network.host_silent"]
    assert silent == [["right"], ["right"]]


def test_a_connection_that_is_asked_for_in_vain_names_the_host_whose_port_is_silent() -> None:
    found = findings_of_hosts(
        left=[job(4), interfaces(LO, ETH), asking("10.0.0.7", "10.0.0.9:37411", 3), STANDS],
        right=[interfaces(LO, interface("eth0", "10.0.0.9"))],
    )
    cut, closed = one(found, "startup.endpoint_unreachable"), one(found, "network.host_silent")
    told = {key: cut.attributes[key] for key in ("address", "port", "how", "stage")}
    assert told == {"address": "10.0.0.9", "port": 37411, "how": "timed_out", "stage": "peers"}
    assert (cut.hosts, closed.hosts, closed.attributes["to"]) == (["left"], ["right"], ["left"])
    assert "network.packet_loss" not in codes(found), "what never was there has lost nothing"


@pytest.mark.parametrize(("backoff", "silent"), [(1, False), (2, True)])
def test_a_connection_that_is_only_just_asked_for_is_not_unreachable(backoff: int, silent: bool) -> None:
    found = findings_of(job(4), interfaces(LO, ETH), asking("10.0.0.7", "10.0.0.9:37411", backoff))
    assert ("startup.endpoint_unreachable" in codes(found)) is silent


ARP = "IP address       HW type     Flags       HW address            Mask     Device\n"


@pytest.mark.parametrize(
    ("seen", "there"),
    [
        (ARP + "10.0.0.9         0x1         0x2         02:00:00:00:00:09     *        eth0\n", True),
        (ARP + "10.0.0.9         0x1         0x0         00:00:00:00:00:00     *        eth0\n", False),
        (ARP + "10.0.0.8         0x1         0x2         02:00:00:00:00:08     *        eth0\n", False),
        ("10.0.0.9 dev eth0 lladdr 02:00:00:00:00:09 STALE\n10.0.0.8 dev eth0  FAILED\n", True),
        ("10.0.0.8 dev eth0 lladdr 02:00:00:00:00:08 REACHABLE\n10.0.0.9 dev eth0  FAILED\n", False),
        ("ESTAB 0 0 10.0.0.7:29500 10.0.0.9:51844\n\t cubic rto:204 mss:1448 cwnd:10\n", True),
    ],
)
def test_a_silent_port_of_a_host_that_answers_otherwise_is_not_a_host_that_is_down(seen: str, there: bool) -> None:
    found = findings_of(job(4), interfaces(LO, ETH), asking("10.0.0.7", "10.0.0.9:37411", 3), text(seen))
    cut = one(found, "startup.endpoint_unreachable")
    assert (cut.attributes["host_answers"], "The host is up" in cut.summary) == (there, there)


def test_where_neither_answers_the_other_no_host_is_named() -> None:
    found = findings_of_hosts(
        left=[interfaces(LO, ETH), asking("10.0.0.7", "10.0.0.9:37411", 3)],
        right=[interfaces(LO, interface("eth0", "10.0.0.9")), asking("10.0.0.9", "10.0.0.7:52000", 3)],
    )
    assert "network.host_silent" not in codes(found)


SENT = (
    'ESTAB 0 0 {own}:6000 {peer}:5000 users:(("python3",pid=41,fd=9))\n\t cubic rto:204 mss:1448 cwnd:10 '
    "data_segs_out:{sent} retrans:0/{again} dsack_dups:{spurious}\n"
)


@pytest.mark.parametrize(
    ("peer", "sent", "again", "spurious", "lossy"),
    [
        ("10.0.0.9", 8_000, 400, 0, True),
        ("10.0.0.9", 8_000, 40, 0, False),
        ("10.0.0.9", 800, 400, 0, False),
        ("10.0.0.9", 8_000, 400, 390, False),
        ("10.0.0.7", 8_000, 400, 0, False),
    ],
    ids=["lossy", "a few", "hardly used", "sent again for nothing", "to itself"],
)
def test_what_a_connection_to_another_host_sent_again(
    peer: str, sent: int, again: int, spurious: int, lossy: bool
) -> None:
    told = text(SENT.format(own="10.0.0.7", peer=peer, sent=sent, again=again, spurious=spurious))
    found = findings_of(job(4), interfaces(LO, ETH), told)
    assert ("network.packet_loss" in codes(found)) is lossy
    if lossy:
        loss = one(found, "network.packet_loss")
        assert (loss.attributes["how"], loss.attributes["peer"], loss.attributes["rate"]) == (
            "since_connected",
            peer,
            0.05,
        )
        assert loss.evidence[0].quote.startswith("retrans:0/400")


@pytest.mark.parametrize(("peer", "severity"), [("10.0.0.9", Severity.WARNING), ("10.0.0.7", None)])
def test_an_interface_that_is_down_matters_if_connections_to_others_go_through_it(
    peer: str, severity: Severity | None
) -> None:
    down = interface("eth0", "10.0.0.7", up=False, running=False)
    stalled = f"ESTAB 0 96 10.0.0.7:6000 {peer}:5000\n\t cubic rto:204 backoff:6 mss:1448 retrans:1/7\n"
    found = findings_of(job(16), interfaces(LO, down), name("node-1", "10.0.0.7"), text(stalled))
    links = [finding for finding in found if finding.code == "network.link_down"]
    assert [link.severity for link in links] == ([severity] if severity else [])
    wrong = one(found, "startup.interface_unusable")
    assert (wrong.attributes["library"], wrong.severity) == ("nccl", Severity.NOTICE), "nobody chose wrong"


@pytest.mark.parametrize(
    ("idle", "severity"), [("br-5a1c", Severity.WARNING), ("cni0", Severity.WARNING), ("eth1", Severity.NOTICE)]
)
def test_only_an_interface_of_the_machine_that_is_down_excuses_the_choice_of_loopback(
    idle: str, severity: Severity
) -> None:
    down = interface(idle, "172.18.0.1", up=True, running=False)
    found = findings_of(job(16), interfaces(LO, down), name("node-1", "127.0.1.1"))
    unusable = [finding for finding in found if finding.code == "startup.interface_unusable"]
    assert {finding.severity for finding in unusable} == {severity}


def test_a_lossy_connection_is_told_by_what_it_holds() -> None:
    rows = fact_rows((RECORDED / "ss_loss.txt").read_bytes(), "ss", "ss")
    facts = [fact for fact in rows if fact["topic"] == "tcp_socket"]
    assert [fact["subject"] for fact in facts] == ["10.77.0.2:5201", "10.77.0.2:5201"]
    assert '"unsent_bytes": 3318096' in facts[1]["facts"]


PIECES = st.sampled_from(
    ["ESTAB ", "0 ", "9" * 14, " 1.2.3.4:5", " [::1]:9", ' users:(("x",pid=1,fd=2))', "\n\t rto:1 mss:2 backoff:3",
     "\n", "timer:(on,", "Tcp: a b\nTcp: 1 2\n", "eth0\t00000000\tFFFFFFFF\t0001\t0\t0\t0\t00000000\t", "\0", "::",
     "retrans:0/1", " bytes_sent:7 bytes_retrans:9 bytes_acked:" + "9" * 19 + " notsent:1"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=30))
def test_no_text_of_connections_can_hurt_the_reader(pieces: list[str]) -> None:
    assert findings_in("Recv-Q Tcp: Iface\tDestination\n" + "".join(pieces)) is not None


# --- connections that stand still


def standing(own: str, peer: str, backoff: int = 0, more: str = " unacked:3 retrans:1/3 lost:3") -> RawItem:
    """A connection between two addresses; with a backoff, its oldest segment is sent again and again."""
    counters = f" backoff:{backoff}{more}" if backoff else ""
    line = f'ESTAB 0 {backoff and 4096} {own}:51844 {peer}:29500 users:(("python3",pid=41,fd=9))'
    return text(f"{line}\n\t cubic rto:12800{counters} mss:1448 cwnd:1\n")


def three_hosts(left: Sequence[RawItem], middle: Sequence[RawItem], right: Sequence[RawItem] = ()) -> list[Finding]:
    return findings_of_hosts(
        left=[job(4), interfaces(LO, ETH), *left],
        middle=[job(4), interfaces(LO, interface("eth0", "10.0.0.8")), *middle],
        right=[job(4), interfaces(LO, interface("eth0", "10.0.0.9")), *right],
    )


def test_two_hosts_that_reach_a_third_and_not_each_other_are_named() -> None:
    left = [standing("10.0.0.7", "10.0.0.8", 5), standing("10.0.0.7", "10.0.0.9")]
    cut = one(three_hosts(left, [standing("10.0.0.8", "10.0.0.9")]), "network.pair_cut")
    assert cut.hosts == ["left", "middle"]
    assert cut.attributes["again"] == 5


@pytest.mark.parametrize(
    ("left", "middle"),
    [
        ([standing("10.0.0.7", "10.0.0.8", 2), standing("10.0.0.7", "10.0.0.9")], [standing("10.0.0.8", "10.0.0.9")]),
        (
            [standing("10.0.0.7", "10.0.0.8", 5), standing("10.0.0.7", "10.0.0.9", 5)],
            [standing("10.0.0.8", "10.0.0.9")],
        ),
        (
            [
                standing("10.0.0.7", "10.0.0.8", 5, " retrans:0/1 dsack_dups:1 notsent:33624"),
                standing("10.0.0.7", "10.0.0.9"),
            ],
            [standing("10.0.0.8", "10.0.0.9")],
        ),
    ],
    ids=["just lost once or twice", "reaches nobody", "its peer does not read"],
)
def test_no_pair_is_named_where_it_is_something_else(left: list[RawItem], middle: list[RawItem]) -> None:
    assert "network.pair_cut" not in codes(three_hosts(left, middle))


@pytest.mark.parametrize(("of", "first"), [({"of": "machine"}, False), ({}, True)], ids=["a machine", "an uplink"])
def test_what_a_machine_sends_again_decides_nothing_alone(of: dict[str, str], *, first: bool) -> None:
    told = Finding(
        code="network.packet_loss",
        severity=Severity.WARNING,
        summary="TCP retransmitted 2.00% of its segments between two readings.",
        evidence=[Evidence(source="nstat", quote="TcpRetransSegs 200")],
        attributes={"how": "between_readings", "rate": 0.02, "counters": {}, **of},
    )
    assert (diagnose([told], load_playbooks()).verdict is Verdict.DIAGNOSED) is first
