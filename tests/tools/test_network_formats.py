"""What ping, nc, getent, ip, ss, iperf3, perftest and tshark print; and bytes that none of them printed."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from network_lan import RECORDED

from ddx_tools.parsers.network.iperf3_json import read_iperf3
from ddx_tools.parsers.network.perftest_text import read_perftest
from ddx_tools.parsers.network.ping_text import read_ping
from ddx_tools.parsers.network.route_text import read_route
from ddx_tools.parsers.network.ss_listen_text import read_listeners
from ddx_tools.parsers.network.tcp_connect_text import read_addresses, read_tried
from ddx_tools.parsers.network.tshark_text import FIELDS, read_flows


def recorded(name: str) -> bytes:
    return (RECORDED / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "outcome", "received", "mtu_told", "hop"),
    [
        ("ping_all.txt", "all", 100, None, None),
        ("ping_lossy.txt", "some", 86, None, None),
        ("ping_silent.txt", "silent", 0, None, None),
        ("ping_unreachable.txt", "silent", 0, None, None),
        ("ping_too_long_here.txt", "too_long_here", 0, 9000, None),
        ("ping_too_long_on_way.txt", "too_long_on_way", 0, 1400, "10.88.0.2"),
    ],
)
def test_the_ways_in_which_a_ping_fails_are_kept_apart(
    name: str, outcome: str, received: int, mtu_told: int | None, hop: str | None
) -> None:
    run = read_ping(recorded(name))
    assert (run.outcome, run.received, run.mtu_told, run.hop) == (outcome, received, mtu_told, hop)
    assert run.quote in recorded(name).decode()


def test_a_ping_that_cannot_do_it_is_no_measurement() -> None:
    busybox = b"ping: invalid option -- 'M'\nBusyBox v1.36.1 () multi-call binary.\n\nUsage: ping [OPTIONS] HOST\n"
    assert read_ping(busybox).outcome == "unable"
    assert read_ping(b"ping: cannot flood; minimal interval allowed for user is 200ms\n").outcome == "unable"


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ("Connection to 10.0.0.2 29500 port [tcp/*] succeeded! (0.4 ms)", "open"),
        ("Connection to node-2 (10.0.0.2) 29500 port [tcp/*] succeeded!", "open"),
        ("connect to 10.0.0.2 port 29500 (tcp) failed: Connection refused (0.1 ms)", "refused"),
        ("10.0.0.2 port 29500 (tcp) answers: Connection refused (0.1 ms)", "refused"),
        ("nc: connect to node-2 (10.0.0.2) port 29500 (tcp) timed out: Operation now in progress", "timed_out"),
        ("nc: connect to node-2 port 29500 (tcp) failed: No route to host", "no_route"),
        ("connect to 10.0.0.2 port 29500 (tcp) failed: Network is unreachable (0.0 ms)", "no_route"),
        ("connect to 10.0.0.2 port 29500 (tcp) failed: Cannot assign requested address (0.0 ms)", "failed"),
    ],
)
def test_what_came_of_a_connection_is_classified(line: str, outcome: str) -> None:
    tried = read_tried(line.encode())
    assert tried is not None
    assert (tried.outcome, tried.port, tried.quote) == (outcome, 29500, line)


def test_a_name_means_its_addresses_once_each() -> None:
    text = b"10.0.0.2        STREAM node-2\n10.0.0.2        DGRAM  \nfd00::2         STREAM \n::ffff:10.0.0.3 STREAM \n"
    assert read_addresses(text) == ["10.0.0.2", "fd00::2", "10.0.0.3"]
    assert read_addresses(recorded("getent_localhost.txt")) == ["127.0.0.1"]


def test_routes_name_interface_and_what_the_kernel_knows_of_the_way() -> None:
    plain, told, own = (read_route(recorded(f"ip_route_get{end}.txt")) for end in ("", "_told_by_router", "_local"))
    assert plain is not None and told is not None and own is not None
    assert (plain.device, plain.source, plain.gateway, plain.mtu) == ("eth0", "10.88.0.1", None, None)
    assert (told.gateway, told.mtu) == ("10.88.0.2", 1400)
    assert own.local and not plain.local
    assert read_route(b"RTNETLINK answers: Network is unreachable\n") is None


def test_listeners_are_named_with_their_process() -> None:
    [one] = read_listeners(recorded("ss_ltnp.txt"))
    assert (one.address, one.port, one.name) == ("0.0.0.0", 6000, "python3")
    assert one.pid and one.line == 2
    [other] = read_listeners(b"LISTEN 0 128 [::]:22 [::]:*\n")
    assert (other.address, other.port, other.pid) == ("::", 22, None)


def test_iperf3_counts_what_was_sent_again() -> None:
    clean, lossy = read_iperf3(recorded("iperf3_clean.json")), read_iperf3(recorded("iperf3_lossy.json"))
    assert clean is not None and lossy is not None
    assert clean.gbit_per_s and clean.share_sent_again is not None and clean.share_sent_again < 1e-3
    assert lossy.share_sent_again == lossy.sent_again / (lossy.sent_bytes / 1448)  # type: ignore[operator]
    assert lossy.share_sent_again > 1e-3
    refused = read_iperf3(recorded("iperf3_refused.json"))
    assert refused is not None
    assert (refused.error, refused.gbit_per_s) == ("unable to connect to server: Connection refused", None)


def test_intervals_in_which_nothing_was_sent_are_counted() -> None:
    told = json.loads(recorded("iperf3_clean.json"))
    told["intervals"] += [{"sum": {"bytes": 0}}, {"sum": {"bytes": 0}}]
    run = read_iperf3(json.dumps(told).encode())
    assert run is not None
    assert (run.quiet_intervals, run.intervals) == (2, len(told["intervals"]))


def test_perftests_megabytes_are_binary_and_its_gigabits_decimal() -> None:
    run = read_perftest(recorded("ib_write_bw_rxe.txt"))
    assert [(row.size_bytes, row.line) for row in run.rows] == [(65536, 24)]
    assert run.rows[0].gbit_per_s == pytest.approx(10.48 * 8 * 2**20 / 1e9)
    assert (run.facts["device"], run.facts["link_type"], run.facts["mtu"]) == ("rxe0", "Ethernet", "1024")
    in_gbits = recorded("ib_write_bw_rxe.txt").replace(b"MB/sec", b"Gb/sec")
    assert read_perftest(in_gbits).rows[0].gbit_per_s == 10.48
    assert read_perftest(b"Couldn't connect to 10.79.0.1:18515\n").error == "Couldn't connect to 10.79.0.1:18515"


def test_a_capture_tells_what_became_of_each_connection() -> None:
    dropped, refused, full = read_flows(recorded("faults_packets.txt"))
    assert dropped.never_answered and dropped.of_client.syns == 4 and dropped.server == "10.88.0.2:29500"
    assert refused.refused and not refused.never_answered
    assert full.answered and full.of_server.zero_windows == 4 and not full.of_client.zero_windows


def test_packets_sent_again_are_counted_on_the_side_that_sent_them() -> None:
    data, control = read_flows(recorded("lossy_packets.txt"))
    assert (data.of_client.again, data.of_server.again, data.of_server.duplicate_acks) == (5, 0, 17)
    assert (control.of_client.again, control.of_server.again) == (0, 0)


def packet(*cells: str) -> bytes:
    return ("\t".join(cells) + "\n").encode()


def test_connections_of_ipv6_are_read_too() -> None:
    row = ("1", "0.0", "0", "", "fd00::1", "50000", "", "fd00::2", "29500", "0x0002", "0", "", "", "")
    assert len(row) == len(FIELDS)
    [flow] = read_flows(packet(*row))
    assert (flow.client, flow.server, flow.of_client.syns) == ("[fd00::1]:50000", "[fd00::2]:29500", 1)


def test_a_capture_that_begins_with_the_answer_knows_who_called() -> None:
    row = ("1", "0.0", "0", "10.0.0.2", "", "29500", "10.0.0.1", "", "50000", "0x0012", "0", "", "", "")
    [flow] = read_flows(packet(*row))
    assert (flow.client, flow.server) == ("10.0.0.1:50000", "10.0.0.2:29500")


Reader = Callable[[bytes], object]
READERS: list[Reader] = [
    read_iperf3, read_perftest, read_ping, read_route, read_listeners, read_tried, read_addresses, read_flows,
]  # fmt: skip
TEXTS = sorted(RECORDED.glob("*.txt")) + sorted(RECORDED.glob("*.json"))


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
@given(noise=st.binary(max_size=400))
def test_no_bytes_break_a_reader(read: Reader, noise: bytes) -> None:
    read(noise)


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
@given(data=st.data())
def test_damaged_outputs_break_no_reader(read: Reader, data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(TEXTS)).read_bytes()
    at, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 40))
    read(text[:at] + data.draw(st.binary(max_size=20)) + text[at + length :])


@given(value=st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5), st.lists))
def test_an_iperf3_result_with_values_of_any_kind_is_no_trouble(value: object) -> None:
    for place in ("start", "intervals", "end", "error"):
        read_iperf3(json.dumps({"start": {}, place: value}).encode())
        read_iperf3(json.dumps({"start": {"tcp_mss": value}, "end": {"sum_sent": {"bytes": value}}}).encode())


@pytest.mark.parametrize(
    "unit", ["(", "connect to a port 1 (tcp) failed: A ", "\t", "#bytes #iterations ", "dev x src "]
)
def test_long_repeats_take_no_long_time(unit: str) -> None:
    text = (unit * (200_000 // len(unit))).encode()
    for read in READERS:
        read(text)
