"""Ports, counters, MTU, RoCE addresses, interfaces, PCIe bridges."""

from __future__ import annotations

import pytest
from host_reading import CONSTRUCTED, RECORDED, codes, facts_in, findings_in, findings_of, one

from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.model.diagnosis import Severity


def test_ports_that_are_down_are_named_once() -> None:
    found = [f for f in findings_of(RECORDED / "rxe_down.txt") if f.code == "network.link_down"]
    assert [(f.attributes["device"], f.attributes["phys_state"]) for f in found] == [
        ("rxe0", "polling"),
        ("rxe1", "disabled"),
    ]
    assert {f.severity for f in found} == {Severity.WARNING}


@pytest.mark.parametrize(
    "path", [RECORDED / "rxe_active.txt", RECORDED / "no_rdma.txt", CONSTRUCTED / "ib_healthy.txt"], ids=str
)
def test_active_ports_and_no_ports_raise_nothing(path: object) -> None:
    assert codes(findings_of(path)) == set()  # type: ignore[arg-type]


def test_a_port_that_is_down_beside_active_ones_is_a_warning_that_weighs_little() -> None:
    text = (CONSTRUCTED / "ib_healthy.txt").read_text().replace("PORT_ACTIVE (4)", "PORT_DOWN (1)", 1)
    found = one(findings_in(text), "network.link_down")
    assert (found.attributes["device"], found.severity) == ("mlx5_0", Severity.WARNING)
    assert found.attributes["unplugged"] is True and "deliberately uncabled" in found.summary


def test_the_page_tells_each_error_counter_by_its_full_name_and_its_file() -> None:
    page = load_playbooks().causes["ib-link-fault"].text
    for name, file in (
        ("SymbolErrorCounter", "symbol_error"),
        ("LinkErrorRecoveryCounter", "link_error_recovery"),
        ("LinkDownedCounter", "link_downed"),
        ("PortRcvErrors", "port_rcv_errors"),
        ("LocalLinkIntegrityErrors", "local_link_integrity_errors"),
        ("PortXmitDiscards", "port_xmit_discards"),
    ):
        assert f"| `{name}` (`{file}`) |" in page, name


def test_a_port_that_waits_for_its_subnet_manager_and_a_port_with_another_mtu() -> None:
    found = findings_of(CONSTRUCTED / "ib_init_and_mtu.txt")
    down = one(found, "network.link_down")
    assert (down.attributes["device"], down.attributes["state"], down.severity) == ("mlx5_1", "init", Severity.WARNING)
    assert (down.hosts, down.evidence[0].quote) == (["gpu-7"], "state:\t\t\tPORT_INIT (2)")
    mtu = one(found, "network.mtu_differs")
    assert (mtu.attributes["how"], set(mtu.attributes["mtus"].values())) == ("devices", {4096, 2048})


def test_the_same_port_with_another_mtu_on_another_host() -> None:
    port = "root@{}:~# ibv_devinfo\nhca_id:\tmlx5_0\n\tport:\t1\n\t\tstate: PORT_ACTIVE (4)\n\t\tactive_mtu: {} (5)\n"
    found = one(findings_in(port.format("node1", 4096), port.format("node2", 1024)), "network.mtu_differs")
    assert (found.attributes["how"], found.hosts) == ("hosts", ["node1", "node2"])
    assert codes(findings_in(port.format("node1", 4096), port.format("node2", 4096))) == set()


def test_ports_below_what_they_can_do_are_told_but_do_not_differ() -> None:
    text = (
        (CONSTRUCTED / "roce_gids.txt")
        .read_text()
        .replace("active_mtu:		4096 (5)", "active_mtu:		1024 (3)")
    )
    found = one(findings_in(text), "network.mtu_differs")
    assert (found.attributes["how"], found.severity) == ("below_max", Severity.INFO)


@pytest.mark.parametrize(
    ("name", "why", "index"),
    [
        ("roce_gids.txt", "table", 3),
        ("roce_no_ipv4_gid.txt", "no_rocev2_ipv4", None),
        ("roce_without_gids.txt", "table_unknown", None),
    ],
)
def test_roce_asks_for_the_right_gid(name: str, why: str, index: int | None) -> None:
    found = one(findings_of(CONSTRUCTED / name), "network.gid_suspect")
    assert (found.attributes["why"], found.attributes.get("wanted_index")) == (why, index)
    assert (found.severity is Severity.WARNING) is (why == "no_rocev2_ipv4")


def test_infiniband_needs_no_gid() -> None:
    assert "network.gid_suspect" not in codes(findings_of(CONSTRUCTED / "ib_healthy.txt"), Severity.INFO)


def test_gids_of_a_verbose_ibv_devinfo() -> None:
    text = (
        "hca_id:\tmlx5_0\n\tport:\t1\n\t\tstate:\tPORT_ACTIVE (4)\n\t\tlink_layer:\tEthernet\n"
        "\t\tGID[  0]:\t\tfe80::e42:a1ff:fe2b:9f5e, RoCE v1\n"
        "\t\tGID[  1]:\t\tfe80::e42:a1ff:fe2b:9f5e, RoCE v2\n"
        "\t\tGID[  5]:\t\t::ffff:10.0.0.1, RoCE v2\n"
    )
    assert one(findings_in(text), "network.gid_suspect").attributes["wanted_index"] == 5


def test_error_counters() -> None:
    found = one(findings_of(CONSTRUCTED / "perfquery_errors.txt"), "network.link_errors")
    assert found.attributes["counters"] == {
        "SymbolErrorCounter": 65535,
        "LinkErrorRecoveryCounter": 3,
        "LinkDownedCounter": 7,
    }
    assert (found.severity, found.evidence[0].line) == (Severity.NOTICE, 4)
    growing = one(findings_of(CONSTRUCTED / "perfquery_growing.txt"), "network.link_errors")
    assert (growing.attributes["grown"], growing.severity) == ({"SymbolErrorCounter": 80}, Severity.WARNING)


@pytest.mark.parametrize("path", [CONSTRUCTED / "perfquery_healthy.txt", RECORDED / "rxe_counters.txt"], ids=str)
def test_counters_at_zero_raise_nothing(path: object) -> None:
    assert findings_of(path) == []  # type: ignore[arg-type]


def test_counters_out_of_sysfs_and_ethtool() -> None:
    sysfs = (RECORDED / "rxe_counters.txt").read_text().replace("link_downed: 0", "link_downed: 4")
    found = one(findings_in(sysfs), "network.link_errors")
    assert (found.attributes["device"], found.attributes["counters"]) == ("rxe0", {"link_downed": 4})
    ethtool = "$ ethtool -S ens1np0\nNIC statistics:\n     rx_packets: 91\n     rx_discards_phy: 12\n     rx_bytes: 1\n"
    found = one(findings_in(ethtool), "network.packet_loss")
    assert (found.attributes["device"], found.attributes["counters"]) == ("ens1np0", {"rx_discards_phy": 12})


def test_an_interface_whose_mtu_differs_between_hosts() -> None:
    found = findings_of(CONSTRUCTED / "ip_mtu_hosts.txt")
    mtu = one(found, "network.mtu_differs")
    assert (mtu.attributes["mtus"], mtu.attributes["how"]) == ({"node1": 9000, "node2": 1500}, "hosts")
    assert one(found, "network.link_down").attributes["device"] == "ens2np0"
    assert findings_of(CONSTRUCTED / "ip_mtu_same.txt") == []


def test_interfaces_of_a_healthy_host_in_every_shape() -> None:
    text = (RECORDED / "healthy_host.txt").read_text()
    mtus = [row["facts"] for row in facts_in(text, "interface") if row["subject"] == "eth0"]
    assert len(mtus) == 2
    assert all('"mtu": 1400' in facts and '"carrier": true' in facts and "192.0.2.2" in facts for facts in mtus)
    old = "eth0      Link encap:Ethernet  HWaddr 02:fc\n          UP BROADCAST RUNNING MULTICAST  MTU:1500  Metric:1\n"
    assert '"mtu": 1500' in facts_in(old, "interface")[0]["facts"]


def test_bridges_that_redirect() -> None:
    found = one(findings_of(CONSTRUCTED / "lspci_acs_on.txt"), "host.acs_redirects")
    assert (found.attributes["bridges"], found.attributes["on"], found.attributes["total"]) == (["0000:00:03.1"], 1, 2)
    assert findings_of(CONSTRUCTED / "lspci_acs_off.txt") == []


def test_acs_lines_alone_are_counted_without_bridges() -> None:
    line = "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-\n"
    found = one(findings_in(f"$ lspci -vvv | grep ACSCtl\n{line}{line}"), "host.acs_redirects")
    assert (found.attributes["on"], "bridges" in found.attributes) == (2, False)
    quiet = line.replace("ReqRedir+ CmpltRedir+", "ReqRedir- CmpltRedir-")
    assert findings_in(quiet) == []
