"""How communicators form: who is in them, what never finished, what differs between hosts; with healthy twins."""

from __future__ import annotations

from pathlib import Path

import pytest
from nccl_logs import COMM_ID, VERSIONS, Log, findings_of, of_code, rows_of, train, world, write

from ddx_tools.model.diagnosis import Finding, Severity

pytestmark = pytest.mark.slow

STARTUP = ("startup.", "device.", "config.", "transport.downgraded", "transport.without")


def about_startup(findings: list[Finding]) -> list[str]:
    return [finding.code for finding in findings if finding.code.startswith(STARTUP)]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_map_of_ranks_hosts_and_gpus(version: str, tmp_path: Path) -> None:
    directory = write(tmp_path, world(4, version, gpus_per_host=2))
    members = rows_of(directory)["nccl_ranks"]
    assert [(row["rank"], row["host"], row["pid"], row["cuda_device"], row["bus_id"]) for row in members] == [
        (0, "node-00", 4000, 0, "1b000"),
        (1, "node-00", 4001, 1, "1c000"),
        (2, "node-01", 4002, 0, "1b000"),
        (3, "node-01", 4003, 1, "1c000"),
    ]
    assert {(row["communicator"], row["completed"], row["stage"]) for row in members} == {(COMM_ID, True, "complete")}
    timed = {row["total_s"] for row in members}
    assert timed == ({1.25} if version >= "2.24" else {None})
    assert about_startup(findings_of(directory)) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_splits_are_tied_across_processes_by_their_parent(version: str, tmp_path: Path) -> None:
    """Two halves of four ranks: the addresses say nothing, parent, number and color do."""
    logs = world(4, version)
    for log in logs:
        color, comm_id = log.rank % 2, f"0x77{log.rank % 2}"
        for state in ("START", "COMPLETE"):
            log.split(2, log.rank // 2, color, comm_id=comm_id, state=state)
    directory = write(tmp_path, logs)
    halves: dict[str, set[int]] = {}
    for row in rows_of(directory)["nccl_ranks"]:
        if row["nranks"] == 2:
            halves.setdefault(row["communicator"], set()).add(row["pid"] - 4000)
    assert sorted(halves.values(), key=min) == [{0, 2}, {1, 3}]
    assert about_startup(findings_of(directory)) == []


def test_a_commid_that_is_used_again_is_another_communicator(tmp_path: Path) -> None:
    """Up to 2.20 the commId of a split is made of the parent and the color alone."""
    logs = world(2, "2.18.6", gpus_per_host=2)
    for log in logs:
        for number in (1, 2):
            for state in ("START", "COMPLETE"):
                log.split(2, log.rank, 0, number=number, comm_id="0x77", state=state)
    found = {row["communicator"] for row in rows_of(write(tmp_path, logs))["nccl_ranks"]}
    assert found == {COMM_ID, "0x77", "0x77#2"}


def test_operations_of_a_split_name_the_ranks_of_the_job(tmp_path: Path) -> None:
    logs = world(4)
    for log in logs:
        for state in ("START", "COMPLETE"):
            log.split(2, log.rank // 2, log.rank % 2, state=state)
        log.op("AllReduce", 0, 9 if log.rank == 3 else 8, nranks=2, number=1)
    (found,) = of_code(findings_of(write(tmp_path, logs)), "collective.shape_mismatch")
    assert (found.ranks, found.attributes["tie"]) == ([1, 3], True)
    assert found.attributes["sizes"] == {"8": [1], "9": [3]}


# --- never finished


def starting(*ranks: int, nranks: int = 4, version: str = "2.27.7") -> list[Log]:
    logs = [Log(rank, version) for rank in ranks]
    for log in logs:
        log.banner()
        log.interface()
        log.network()
        log.start(nranks)
    return logs


@pytest.mark.parametrize("version", VERSIONS)
def test_a_rank_that_never_came_is_named(version: str, tmp_path: Path) -> None:
    (found,) = of_code(
        findings_of(write(tmp_path, starting(0, 1, 3, version=version))), "startup.communicator_incomplete"
    )
    facts = found.attributes
    assert (facts["nranks"], facts["started"], facts["completed"], facts["never_started"]) == (4, [0, 1, 3], [], [2])
    assert (facts["stage"], facts["communicator"], found.severity) == ("bootstrap", COMM_ID, Severity.FAILURE)
    assert found.evidence[0].quote.endswith("Init START")


def test_the_stage_of_the_slowest_is_told(tmp_path: Path) -> None:
    logs = starting(0, 1, 2, 3)
    for log in logs:
        log.edge((log.rank + 1) % 4, "P2P/CUMEM")
        if log.rank != 2:
            log.info("Connected all rings, use ring PXN 0 GDR 1")
    (found,) = of_code(findings_of(write(tmp_path, logs)), "startup.communicator_incomplete")
    assert (found.ranks, found.attributes["stage"]) == ([0, 1, 2, 3], "connecting")
    assert "via P2P/CUMEM" in found.evidence[0].quote and ".4002." in found.evidence[0].source


def test_what_enqueued_operations_was_set_up(tmp_path: Path) -> None:
    """Lines of INIT can be filtered away later than they began."""
    logs = starting(0, 1, 2, 3)
    train(logs, nranks=4)
    assert of_code(findings_of(write(tmp_path, logs)), "startup.communicator_incomplete") == []


def test_errors_of_nccl_are_told_with_it(tmp_path: Path) -> None:
    logs = starting(0, 1, 2, 3)
    for log in logs[:3]:
        log.info("misc/socket.cc:484 -> 2")
        log.info("bootstrap.cc:402 -> 2")
    (found,) = of_code(findings_of(write(tmp_path, logs)), "startup.communicator_incomplete")
    assert found.attributes["errors"] == {"system": 3}


# --- versions and settings


def test_versions_that_differ(tmp_path: Path) -> None:
    logs = [*world(4)[:3], Log(3, "2.21.5")]
    logs[3].banner()
    (found,) = of_code(findings_of(write(tmp_path, logs)), "startup.versions_differ")
    assert found.attributes["versions"] == {"2.27.7": ["node-00"], "2.21.5": ["node-00"]}
    assert (found.attributes["what"], found.severity) == ("nccl", Severity.FAILURE)
    assert [evidence.quote.rsplit(" ", 1)[-1] for evidence in found.evidence] == ["2.27.7+cuda12.4", "2.21.5+cuda12.4"]


def test_banners_without_a_prefix_count_too(tmp_path: Path) -> None:
    logs = world(2, gpus_per_host=1)
    for log in logs:
        log.lines[0] = f"NCCL version {'2.27.7' if log.rank else '2.26.2'}+cuda12.4"
    (found,) = of_code(findings_of(write(tmp_path, logs)), "startup.versions_differ")
    assert sorted(found.attributes["versions"]) == ["2.26.2", "2.27.7"]


def test_a_setting_of_one_host_that_differs(tmp_path: Path) -> None:
    logs = world(6, gpus_per_host=2)
    for log in logs:
        log.environment(NCCL_IB_HCA="mlx5_0" if log.rank < 4 else "mlx5_2", NCCL_DEBUG_FILE=f"/tmp/{log.rank}")
    (found,) = of_code(findings_of(write(tmp_path, logs)), "config.differs")
    facts = found.attributes
    assert (facts["variable"], found.ranks, found.hosts) == ("NCCL_IB_HCA", [4, 5], ["node-02"])
    assert facts["values"] == {"mlx5_0": ["0", "1", "2", "3"], "mlx5_2": ["4", "5"]}
    assert facts["minority"] is True


def test_a_setting_that_one_host_lacks(tmp_path: Path) -> None:
    logs = world(6, gpus_per_host=2)
    for log in logs:
        log.environment(NCCL_SOCKET_IFNAME="eth0")
        if log.rank < 4:
            log.environment(NCCL_IB_GID_INDEX="3")
    (found,) = of_code(findings_of(write(tmp_path, logs)), "config.differs")
    assert (found.attributes["variable"], found.hosts) == ("NCCL_IB_GID_INDEX", ["node-02"])


def test_a_setting_that_only_some_processes_of_each_host_read_is_no_skew(tmp_path: Path) -> None:
    logs = world(6, gpus_per_host=2)
    for log in logs[::2]:
        log.environment(NCCL_SOCKET_NTHREADS="4")
    assert about_startup(findings_of(write(tmp_path, logs))) == []


# --- GPUs and interfaces


def test_two_ranks_on_one_gpu(tmp_path: Path) -> None:
    logs = [Log(rank) for rank in range(2)]
    for log in logs:
        log.start(2, bus="1b000")
        log.warn("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000", "init.cc:974")
    found = of_code(findings_of(write(tmp_path, logs)), "device.duplicate")
    assert {tuple(each.ranks) for each in found} == {(0, 1)}
    assert any(each.attributes["devices"] == ["1b000"] for each in found)


def test_one_bus_id_on_two_hosts_is_two_gpus(tmp_path: Path) -> None:
    logs = [Log(rank, gpus_per_host=1) for rank in range(2)]
    for log in logs:
        log.start(2, bus="1b000")
        log.complete(2, bus="1b000")
    assert about_startup(findings_of(write(tmp_path, logs))) == []


@pytest.mark.parametrize(
    ("interface", "address", "loopback"), [("lo", "127.0.0.1", True), ("docker0", "172.17.0.1", False)]
)
def test_an_interface_that_reaches_no_other_host(interface: str, address: str, loopback: bool, tmp_path: Path) -> None:
    logs = world(4, gpus_per_host=2)
    for log in logs[2:]:
        log.interface(interface, address)
    (found,) = of_code(findings_of(write(tmp_path, logs)), "startup.interface_unusable")
    facts = found.attributes
    assert (facts["interface"], facts["loopback"], facts["hosts_differ"]) == (interface, loopback, True)
    assert (found.hosts, found.ranks) == (["node-01"], [2, 3])
    assert interface in found.evidence[0].quote


def test_loopback_on_a_single_host_is_fine(tmp_path: Path) -> None:
    logs = world(2)
    for log in logs:
        log.interface("lo", "127.0.0.1")
    assert about_startup(findings_of(write(tmp_path, logs))) == []


def at_start(rank: int, interface: str, address: str, version: str = "2.27.7", *, broken: bool = True) -> Log:
    """A process of a host of its own, as far as its interface; and it fails."""
    log = Log(rank, version, gpus_per_host=1)
    log.banner()
    log.interface(interface, address)
    if broken:
        log.info("bootstrap.cc:285 -> 2")
    return log


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("interface", "address"), [("usb0", "169.254.3.1"), ("vmnet8", "192.168.122.1")])
def test_one_address_on_two_hosts_leads_to_oneself(version: str, interface: str, address: str, tmp_path: Path) -> None:
    logs = [at_start(rank, interface, address, version) for rank in range(2)]
    (found,) = of_code(findings_of(write(tmp_path, logs)), "startup.interface_unusable")
    assert (found.attributes["shared_by"], found.severity) == (["node-00", "node-01"], Severity.FAILURE)
    assert found.attributes["address"] == address


def test_a_link_local_address_where_the_start_fails(tmp_path: Path) -> None:
    logs = [at_start(0, "enx0a", "169.254.3.1"), at_start(1, "eth0", "10.0.0.2")]
    (found,) = of_code(findings_of(write(tmp_path, logs)), "startup.interface_unusable")
    assert (found.attributes["link_local"], found.hosts, found.severity) == (True, ["node-00"], Severity.WARNING)
    assert found.attributes["hosts_differ"]


def test_addresses_that_work_are_told_quietly(tmp_path: Path) -> None:
    """Two hosts on one cable may well use link-local addresses; two names of one machine share theirs."""
    logs = world(2, gpus_per_host=1)
    for log in logs:
        log.interface("eth0", "169.254.3.1")
    found = of_code(findings_of(write(tmp_path, logs)), "startup.interface_unusable")
    assert {each.severity for each in found} == {Severity.INFO}


def test_routable_addresses_of_their_own_raise_nothing(tmp_path: Path) -> None:
    logs = [at_start(0, "eth0", "10.0.0.1"), at_start(1, "eth0", "10.0.0.2")]
    assert of_code(findings_of(write(tmp_path, logs)), "startup.interface_unusable") == []


# --- warnings


def test_a_known_warning_gets_the_rank_that_the_communicator_tells(tmp_path: Path) -> None:
    logs = world(4, gpus_per_host=2)
    logs[3].warn(
        "NET/IB: Got completion from peer 10.0.0.1<49189> with status=12 opcode=0 len=0 vendor err 129 (Recv) "
        "localGid ::ffff:10.0.0.2 remoteGids::ffff:10.0.0.1 hca mlx5_0",
        "transport/net_ib.cc:2458",
    )
    (found,) = of_code(findings_of(write(tmp_path, logs)), "network.completion_error")
    assert (found.ranks, found.hosts) == ([3], ["node-01"])
    assert (found.attributes["status"], found.attributes["vendor_err"]) == (12, 129)
    assert found.attributes["basis"] == "nccl_log"
    assert found.evidence[0].line == len(logs[3].lines)


def test_ranks_that_nccl_tests_print_are_those_of_the_warnings(tmp_path: Path) -> None:
    log = Log(0)
    log.warn("NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129", "transport/net_ib.cc:839")
    head = f"#   Rank  6 Pid  {log.pid} on {log.node} device  0 [0x1a] Tesla V100-SXM2-32GB\n"
    (tmp_path / "tests.out").write_text(head + log.text())
    (found,) = of_code(findings_of(tmp_path / "tests.out"), "network.completion_error")
    assert (found.ranks, found.hosts) == ([6], ["node-00"])


def test_connections_that_peers_closed(tmp_path: Path) -> None:
    logs = world(4)
    for log in logs[:3]:
        log.warn("socketProgress: Connection closed by remote peer node-00<42830>")
    (found,) = of_code(findings_of(write(tmp_path, logs)), "collective.connection_lost")
    assert (found.ranks, found.severity, found.attributes["peers"]) == ([0, 1, 2], Severity.NOTICE, ["node-00<42830>"])


def test_attempts_to_connect_are_told_though_they_are_no_warnings(tmp_path: Path) -> None:
    logs = starting(0, 1)
    logs[1].info("Call to connect returned Connection refused, retrying")
    found = of_code(findings_of(write(tmp_path, logs)), "log.signature")
    assert [each.attributes["signature"] for each in found] == ["nccl_connect_retry"]


def test_an_unknown_warning_is_told_as_it_stands_and_once(tmp_path: Path) -> None:
    logs = world(4)
    for log in logs:
        for number in range(50):
            log.warn(f"frobnicator {number} of ring {log.rank} came loose", "misc/frob.cc:12")
    (found,) = of_code(findings_of(write(tmp_path, logs)), "log.signature")
    assert (found.ranks, found.attributes["count"], found.attributes["place"]) == ([0, 1, 2, 3], 200, "misc/frob.cc:12")
    assert "frobnicator 0" in found.summary and found.severity is Severity.NOTICE


def test_rings_that_connect_behind_the_set_up_tell_that_it_was_completed(tmp_path: Path) -> None:
    """Since 2.22 the first collective connects; a log that somebody cut may lack the line that says COMPLETE."""
    log = Log(0, "2.26.2")
    log.start(8)
    log.info("24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer")
    assert about_startup(findings_of(write(tmp_path, [log]))) == ["startup.communicator_incomplete"]
    log.edge(1, "P2P/CUMEM/read")
    log.info("Connected all rings, use ring PXN 0 GDR 0")
    assert about_startup(findings_of(write(tmp_path, [log]))) == []
    before = Log(0, "2.18.6")  # here rings are a step of the set-up
    before.start(8)
    before.info("Connected all rings")
    assert about_startup(findings_of(write(tmp_path, [before]))) == ["startup.communicator_incomplete"]
