"""What ranks talk over, and where that is slower than it should be; with healthy twins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from nccl_logs import VERSIONS, Log, findings_of, of_code, rows_of, world, write

from ddx_tools.model.diagnosis import Finding, Severity


def job(
    hosts: int, per_host: int, via: Callable[[Log, int], str], network: Callable[[Log], str] = lambda _: "IB"
) -> list[Log]:
    """A ring over all ranks; `via` says what a rank uses towards its successor."""
    nranks = hosts * per_host
    logs = [Log(rank, gpus_per_host=per_host) for rank in range(nranks)]
    for log in logs:
        log.interface()
        log.network(network(log))
        log.start(nranks)
        target = (log.rank + 1) % nranks
        used = via(log, target)
        log.edge(target, used, "send" if used.startswith("NET") else "")
        if used.startswith("NET"):
            logs[target].edge(log.rank, used, "receive")
        log.complete(nranks)
    return logs


def usual(log: Log, target: int) -> str:
    return "P2P/CUMEM" if target // log.gpus_per_host == log.rank // log.gpus_per_host else "NET/IB/0/GDRDMA"


def test_the_usual_transports_are_only_told(tmp_path: Path) -> None:
    found = findings_of(write(tmp_path, job(2, 4, usual)))
    assert [finding.code for finding in found] == ["transport.chosen"]
    facts = found[0].attributes
    assert facts["transports"] == {"P2P/CUMEM": 6, "NET/IB/GDRDMA": 2}
    assert (facts["network"], facts["interfaces"]) == ("IB", ["eth0"])


def test_channels_between_two_ranks_are_counted(tmp_path: Path) -> None:
    logs = job(1, 2, usual)
    for channel in range(1, 24):
        logs[0].edge(1, "P2P/CUMEM", channel=channel)
    edges = rows_of(write(tmp_path, logs))["nccl_edges"]
    assert [(e["source_rank"], e["target_rank"], e["via"], e["channels"]) for e in edges] == [
        (0, 1, "P2P/CUMEM", 24),
        (1, 0, "P2P/CUMEM", 1),
    ]


def test_a_host_that_took_sockets_while_others_have_rdma(tmp_path: Path) -> None:
    logs = job(3, 2, usual, lambda log: "Socket" if log.node == "node-01" else "IB")
    (found,) = of_code(findings_of(write(tmp_path, logs)), "transport.downgraded")
    facts = found.attributes
    assert (facts["expected"], facts["used"], facts["hosts"], found.ranks) == ("IB", "Socket", ["node-01"], [2, 3])
    assert any("Using network Socket" in evidence.quote for evidence in found.evidence)


def test_a_host_whose_nccl_leaves_out_a_device_that_the_others_use(tmp_path: Path) -> None:
    def unused(hosts: int, lacking: str, **settings: str) -> list[tuple[list[str], list[str]]]:
        logs = job(hosts, 1, usual)
        logs[1].lines = [line.replace(f" {lacking}", "") for line in logs[1].lines]
        logs[1].environment(**settings)
        directory = tmp_path / f"{hosts} {lacking[:3]} {len(settings)}"
        directory.mkdir()
        found = of_code(findings_of(write(directory, logs)), "network.rdma_devices")
        return [(finding.hosts, finding.attributes["unused"]) for finding in found]

    assert unused(3, "[1]mlx5_1:1/IB") == [(["node-01"], ["mlx5_1:1"])]
    assert unused(3, "nothing") == []
    assert unused(3, "[1]mlx5_1:1/IB", NCCL_IB_HCA="mlx5_0") == []  # somebody wants it so
    assert unused(2, "[1]mlx5_1:1/IB") == []  # which of the two is odd?


def test_a_host_without_an_rdma_device(tmp_path: Path) -> None:
    logs = job(3, 1, usual, lambda log: "Socket" if log.node == "node-01" else "IB")
    logs[1].info("NET/IB : No device found.")
    (found,) = of_code(findings_of(write(tmp_path, logs)), "transport.downgraded")
    assert found.attributes["why"] == "NCCL found no RDMA device there"


def test_sockets_everywhere_may_be_all_there_is(tmp_path: Path) -> None:
    logs = job(2, 1, lambda *_: "NET/Socket/0", lambda _: "Socket")
    assert [finding.code for finding in findings_of(write(tmp_path, logs))] == ["transport.chosen"]


def test_transports_that_were_switched_off(tmp_path: Path) -> None:
    logs = job(2, 2, lambda log, target: "SHM/direct/direct" if "P2P" in usual(log, target) else "NET/IB/0/GDRDMA")
    for log in logs:
        log.environment(NCCL_P2P_DISABLE="1", NCCL_IB_DISABLE="0")
    (found,) = of_code(findings_of(write(tmp_path, logs)), "transport.downgraded")
    assert (found.attributes["expected"], found.attributes["why"]) == ("P2P", "NCCL_P2P_DISABLE=1")
    assert found.evidence[0].quote.endswith("NCCL_P2P_DISABLE set by environment to 1.")


def test_one_host_without_p2p(tmp_path: Path) -> None:
    def via(log: Log, target: int) -> str:
        used = usual(log, target)
        return "SHM/direct/direct" if log.node == "node-02" and used.startswith("P2P") else used

    (found,) = of_code(findings_of(write(tmp_path, job(3, 4, via))), "transport.downgraded")
    assert (found.attributes["used"], found.hosts) == ("SHM", ["node-02"])


def test_shared_memory_on_all_hosts_may_be_how_they_are_built(tmp_path: Path) -> None:
    logs = job(3, 2, lambda log, target: usual(log, target).replace("P2P/CUMEM", "SHM/direct/direct"))
    assert of_code(findings_of(write(tmp_path, logs)), "transport.downgraded") == []


def test_the_network_within_one_host(tmp_path: Path) -> None:
    """As with another NCCL_HOSTID for each rank."""
    logs = job(1, 3, lambda *_: "NET/Socket/0", lambda _: "Socket")
    (found,) = of_code(findings_of(write(tmp_path, logs)), "transport.downgraded")
    assert (found.attributes["used"], found.attributes["edges"], found.hosts) == ("NET", 3, ["node-00"])


def test_rails_within_a_host_of_many_are_no_downgrade(tmp_path: Path) -> None:
    """Alltoall over rails sends to a neighbour's network device."""
    logs = job(2, 2, usual)
    logs[0].edge(1, "NET/IB/1/GDRDMA", "send")
    assert of_code(findings_of(write(tmp_path, logs)), "transport.downgraded") == []


def test_one_node_without_gpudirect(tmp_path: Path) -> None:
    logs = job(3, 1, lambda log, _: "NET/IB/0" if log.rank == 1 else "NET/IB/0/GDRDMA")
    # The node itself says so of both its ends.
    for log in logs:
        log.lines = [
            line.removesuffix("/GDRDMA") if log.rank == 1 else line + "/GDRDMA" if line.endswith("NET/IB/0") else line
            for line in log.lines
        ]
    (found,) = of_code(findings_of(write(tmp_path, logs)), "transport.without_gpudirect")
    assert (found.attributes["nodes"], found.attributes["everywhere"], found.ranks) == (["node-01"], False, [1])


def test_gpudirect_nowhere(tmp_path: Path) -> None:
    (found,) = of_code(findings_of(write(tmp_path, job(2, 1, lambda *_: "NET/IB/0"))), "transport.without_gpudirect")
    assert (found.attributes["everywhere"], found.attributes["nodes"]) == (True, ["node-00", "node-01"])


def test_sockets_are_not_asked_for_gpudirect(tmp_path: Path) -> None:
    logs = job(2, 1, lambda *_: "NET/Socket/0", lambda _: "Socket")
    assert of_code(findings_of(write(tmp_path, logs)), "transport.without_gpudirect") == []


def test_rings_and_trees_are_kept(tmp_path: Path) -> None:
    logs = world(2)
    logs[0].start(2, "0xbeef", number=1)
    logs[0].info("Channel 00/02 : 0 1")
    logs[0].info("Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1")
    graphs = rows_of(write(tmp_path, logs))["nccl_graphs"]
    assert [(row["communicator"], row["kind"], row["channel"], row["graph"]) for row in graphs] == [
        ("0xbeef", "ring", 0, "0 1"),
        ("0xbeef", "trees", None, "[0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1"),
    ]


# --- devices that settings name and nobody found


def without_devices(tmp_path: Path, settings: dict[str, str], version: str = "2.27.7", hosts: int = 2) -> list[Finding]:
    logs = [Log(rank, version, gpus_per_host=1 if hosts > 1 else 2) for rank in range(2)]
    for log in logs:
        log.banner()
        log.environment(**settings)
        log.interface()
        log.info("NET/IB : No device found.")
        log.network("Socket")
        log.start(2)
        log.complete(2)
    return of_code(findings_of(write(tmp_path, logs)), "transport.downgraded")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("setting", [("NCCL_IB_HCA", "=mlx5_0"), ("NCCL_IB_GID_INDEX", "3"), ("NCCL_IB_TC", "106")])
def test_settings_name_devices_that_were_not_found(version: str, setting: tuple[str, str], tmp_path: Path) -> None:
    (found,) = without_devices(tmp_path, dict([setting]), version)
    assert (found.attributes["expected"], found.attributes["used"]) == ("IB", "Socket")
    assert (found.hosts, found.severity) == (["node-00", "node-01"], Severity.WARNING)
    assert any("No device found" in place.quote for place in found.evidence)


def test_a_host_without_devices_of_which_nobody_speaks_is_an_ordinary_host(tmp_path: Path) -> None:
    assert without_devices(tmp_path, {"NCCL_SOCKET_IFNAME": "eth0"}) == []


def test_on_one_host_nothing_goes_over_the_network(tmp_path: Path) -> None:
    assert without_devices(tmp_path, {"NCCL_IB_HCA": "mlx5"}, hosts=1) == []
