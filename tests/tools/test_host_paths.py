"""What passes between hosts, link widths and versions of a machine: texts to findings, with healthy twins."""

from __future__ import annotations

import pytest
from host_reading import CONSTRUCTED, codes, findings_in, findings_of, one
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.model.diagnosis import Severity
from ddx_tools.probes.host.text_rows import fact_rows

STATISTICS = "{sent} packets transmitted, {received} received, {loss}% packet loss, time 2036ms\n"


def ping(size: int, received: int, prompt: str = "u@n1:~$ ", flags: str = "-M do", said: str = "") -> str:
    command = f"{prompt}ping -c3 {flags} -s {size} 10.7.0.2\n"
    return command + said + STATISTICS.format(sent=3, received=received, loss=0 if received else 100)


# --- packets that are too large


@pytest.mark.parametrize("prompt", ["u@n1:~$ ", "[root@n1 ~]# ", ""])
@pytest.mark.parametrize(("large", "small"), [(8972, 1472), (1472, 1372), (4000, 56)])
def test_a_way_that_swallows_large_packets(prompt: str, large: int, small: int) -> None:
    found = one(findings_in(ping(large, 0, prompt) + ping(small, 3, prompt)), "network.mtu_differs")
    facts = found.attributes
    assert (facts["how"], facts["vanishes_bytes"], facts["arrives_bytes"]) == ("path", large + 28, small + 28)
    assert (facts["peer"], found.severity) == ("10.7.0.2", Severity.WARNING)


def test_headings_alone_say_the_size_but_not_that_it_must_not_be_cut() -> None:
    heading = "PING n2 (10.7.0.2) {0}({1}) bytes of data.\n"
    text = heading.format(8000, 8028) + STATISTICS.format(sent=3, received=0, loss=100)
    text += heading.format(56, 84) + STATISTICS.format(sent=3, received=3, loss=0)
    found = one(findings_in(text), "network.mtu_differs")
    assert (found.attributes["how"], found.severity) == ("path", Severity.NOTICE)


@pytest.mark.parametrize(
    "text",
    [
        ping(8972, 3) + ping(1472, 3),
        ping(8972, 0) + ping(1472, 0),
        ping(8972, 0),
        ping(1472, 0) + ping(8972, 3),
        ping(8972, 0, said="ping: local error: message too long, mtu=1500\n") + ping(1472, 3),
        ping(8972, 0, said="From 10.7.0.1 icmp_seq=1 Frag needed and DF set (mtu = 1500)\n") + ping(1472, 3),
        ping(8972, 0, flags="-M dont") + ping(1472, 3),
    ],
    ids=["all arrive", "none arrives", "one alone", "small lost", "own limit", "a router says so", "may be cut"],
)
def test_a_way_that_is_closed_or_open_or_says_its_limit_raises_nothing(text: str) -> None:
    assert "network.mtu_differs" not in codes(findings_in(text))


def test_pings_to_different_hosts_are_not_compared() -> None:
    text = ping(8972, 0) + ping(1472, 3).replace("10.7.0.2", "10.7.0.3")
    assert "network.mtu_differs" not in codes(findings_in(text))


# --- segments that are sent again


def socket(backoff: str, retrans: str) -> str:
    return (
        "$ ss -tin\nESTAB 0 99 10.0.0.1:4000 10.0.0.2:5000\n"
        f"\t cubic wscale:7,7 rto:5400 {backoff}rtt:1.2/0.4 mss:1448 pmtu:1500 cwnd:1 {retrans}unacked:1\n"
    )


def test_a_connection_that_gets_nothing_through() -> None:
    found = one(findings_in(socket("backoff:6 ", "retrans:1/9 ")), "network.packet_loss")
    assert (found.attributes["how"], found.attributes["counters"]["again"]) == ("stalled", 9)
    assert "10.0.0.2:5000" in found.summary


@pytest.mark.parametrize("text", [socket("", "retrans:0/9 "), socket("backoff:1 ", "retrans:1/9 "), socket("", "")])
def test_a_connection_that_now_and_then_sends_again_is_well(text: str) -> None:
    assert codes(findings_in(text)) == set()


NSTAT = "TcpOutSegs                      {0}             0.0\nTcpRetransSegs                  {1}              0.0\n"
NETSTAT = "    {0} segments sent out\n    {1} segments retransmitted\n"


@pytest.mark.parametrize("form", [NSTAT, NETSTAT, NETSTAT.replace("sent", "send").replace("tted", "ted")])
def test_retransmissions_between_two_readings(form: str) -> None:
    text = form.format(5_000_000, 9_000) + "\n" + form.format(5_400_000, 29_000)
    found = one(findings_in(text), "network.packet_loss")
    assert (found.attributes["how"], found.severity) == ("between_readings", Severity.WARNING)
    assert found.attributes["rate"] == pytest.approx(0.05)
    assert codes(findings_in(form.format(5_000_000, 9_000) + form.format(9_000_000, 9_020))) == set()


def test_retransmissions_since_boot_say_less() -> None:
    found = one(findings_in(NSTAT.format(5_000_000, 90_000)), "network.packet_loss")
    assert (found.attributes["how"], found.severity) == ("since_boot", Severity.NOTICE)
    assert codes(findings_in(NSTAT.format(5_000_000, 900))) == set()
    assert codes(findings_in(NSTAT.format(90, 40))) == set()


# --- counters of RDMA ports without their paths


@pytest.mark.parametrize(
    ("text", "grown"),
    [
        ("out_of_sequence   100   900\npacket_seq_err  7  7\nrnr_nak_retry_err 0 0\n", {"out_of_sequence": 800}),
        ("out_of_sequence: 5\npacket_seq_err: 0\n\nout_of_sequence: 9\npacket_seq_err: 3\n", None),
        ("hw_counters/roce_adp_retrans:10 -> 40\n", {"roce_adp_retrans": 30}),
    ],
)
def test_counters_before_and_after(text: str, grown: dict[str, int] | None) -> None:
    found = one(findings_in(text), "network.packet_loss")
    assert (found.attributes["how"], found.severity) == ("between_readings", Severity.WARNING)
    assert found.attributes["counters"] == (grown or {"out_of_sequence": 4, "packet_seq_err": 3})


def test_rdma_statistic_names_the_port() -> None:
    text = (
        "$ rdma statistic show\nlink mlx5_0/1 rx_write_requests 12 out_of_sequence 33 packet_seq_err 0 np_cnp_sent 4 \n"
    )
    found = one(findings_in(text), "network.packet_loss")
    assert (found.attributes["device"], found.attributes["counters"]) == ("mlx5_0", {"out_of_sequence": 33})
    assert findings_in(text.replace("33", "0")) == []


def test_errors_of_the_cable_are_no_congestion() -> None:
    text = "NIC statistics:\n     rx_crc_errors_phy: 7\n     rx_discards_phy: 0\n"
    assert codes(findings_in(text)) == {"network.link_errors"}


@pytest.mark.parametrize("text", ["out_of_sequence 0 0\npacket_seq_err 0 0\n", "out_of_sequence 12 12\n" * 3])
def test_counters_that_stand_still_weigh_little(text: str) -> None:
    assert all(found.severity is not Severity.WARNING for found in findings_in(text))


# --- links that came up narrow


def lspci(width: str, capable: str = "x16", kind: str = "Infiniband controller") -> str:
    return (
        f"17:00.0 {kind}: Mellanox Technologies MT2910 Family [ConnectX-7]\n"
        f"\t\tLnkCap:\tPort #0, Speed 32GT/s, Width {capable}, ASPM not supported\n"
        f"\t\tLnkSta:\tSpeed 32GT/s, Width {width}\n\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        lspci("x8 (downgraded)"),
        lspci("x8"),
        "17:00.0 \t\tLnkSta:\tSpeed 32GT/s (ok), Width x8 (downgraded)\n18:00.0 \t\tLnkSta:\tSpeed 32GT/s, Width x16\n",
    ],
    ids=["marked", "against its capability", "one line a device"],
)
def test_a_narrow_link(text: str) -> None:
    found = one(findings_in(text), "host.pcie_link_narrow")
    assert (found.attributes["width"], found.attributes["possible"]) == (8, 16)
    assert found.attributes["devices"] == ["0000:17:00.0"]


@pytest.mark.parametrize(
    "text",
    [
        lspci("x16"),
        lspci("x8", capable="x8"),
        lspci("x8 (downgraded)", kind="PCI bridge"),
        "17:00.0 \t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x16 (ok)\n",
    ],
    ids=["whole", "made so", "a bridge", "an idle link is slow"],
)
def test_a_link_as_wide_as_it_can_be(text: str) -> None:
    assert codes(findings_in(text)) == set()


# --- versions that have to be one and the same

KERNEL = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {0}  Tue Dec 24 01:34:05 UTC 2024\n"
OPEN_KERNEL = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {0}  Release Build  (dvs-builder@U16)\n"
DPKG = "ii  nvidia-fabricmanager-550   {0}-0ubuntu0.22.04.1   amd64   Fabric Manager for NVSwitch based systems.\n"
RPM = "nvidia-fabric-manager-{0}-1.x86_64\n"
SAID = "Fabric Manager version is : {0}\n"
TABLE = "| NVIDIA-SMI {0}    Driver Version: {0}    CUDA Version: 12.4     |\n"


@pytest.mark.parametrize("driver", [KERNEL, OPEN_KERNEL, TABLE])
@pytest.mark.parametrize("manager", [DPKG, RPM, SAID])
def test_a_fabric_manager_of_another_version(driver: str, manager: str) -> None:
    found = one(findings_in(driver.format("550.127.05") + manager.format("550.90.07")), "startup.versions_differ")
    assert found.attributes["versions"] == {"fabric_manager": "550.90.07", "driver": "550.127.05"}
    assert found.severity is Severity.FAILURE
    assert "startup.versions_differ" not in codes(findings_in((driver + manager).format("550.127.05")))


def test_what_the_fabric_manager_says_itself() -> None:
    text = (
        "nv-fabricmanager[911]: fabric manager NVIDIA GPU driver interface version 570.86.15 don't match with driver "
        "version 570.124.06. Please update with matching NVIDIA driver package.\n"
    )
    found = one(findings_in(text), "startup.versions_differ")
    assert found.attributes["versions"] == {"fabric_manager": "570.86.15", "driver": "570.124.06"}


def test_texts_that_may_be_of_two_machines_are_not_compared() -> None:
    assert codes(findings_in(KERNEL.format("550.127.05"), DPKG.format("550.90.07"))) == set()
    assert codes(findings_in(NSTAT.format(5_000_000, 900), NSTAT.format(5_400_000, 4_900))) == set()


def test_a_package_that_was_removed_is_not_there() -> None:
    text = KERNEL.format("550.127.05") + DPKG.format("550.90.07").replace("ii", "rc")
    assert codes(findings_in(text)) == set()


# --- limits of daemons, and devices that are not there


@pytest.mark.parametrize(("value", "size"), [("67108864", 64 << 20), ("64M", 64 << 20), ("8M:64M", 8 << 20)])
def test_what_a_daemon_may_lock(value: str, size: int) -> None:
    found = one(findings_in(f"LimitCORE=infinity\nLimitMEMLOCK={value}\n"), "limits.locked_memory")
    assert found.attributes["limit_bytes"] == size


@pytest.mark.parametrize("value", ["infinity", "18446744073709551615", "infinity:infinity"])
def test_a_daemon_without_limit(value: str) -> None:
    assert findings_in(f"LimitMEMLOCK={value}\nLimitMEMLOCKSoft={value}\n") == []


def test_a_container_without_rdma_on_a_host_with_it() -> None:
    inside = "root@pod-3:/# ls -l /dev/infiniband\nls: cannot access '/dev/infiniband': No such file or directory\n"
    missing = one(findings_in(inside), "network.rdma_devices").attributes
    assert (missing["active"], missing["missing"]) == (0, True)
    there = one(findings_of(CONSTRUCTED / "ib_healthy.txt"), "network.rdma_devices").attributes
    assert there["active"] >= 1
    assert there["missing"] is False


@given(st.text(alphabet="ping -M dos8972 transmitted,received0123456789()\n:/LnkSta=x", max_size=600))
def test_any_text_is_safe(text: str) -> None:
    marked = f"ping 1 packets transmitted retrans: LnkSta: LimitMEMLOCK= out_of_sequence fabricmanager\n{text}"
    assert isinstance(fact_rows(marked.encode(), "x", "x"), list)
