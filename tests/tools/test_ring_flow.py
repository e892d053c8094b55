"""The edge of a ring where bytes leave and do not arrive: NCCL's rings with two readings of ports and NVLinks.

All constructed: counters as in Documentation/ABI/stable/sysfs-class-infiniband (Linux 6.8) and NVML 12.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from ctypes import c_ulonglong
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from host_looks import gpu, interface, interfaces, nvml, rows_of, text
from nccl_logs import Log, world, write
from test_host_live_gpus import fake

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.probes.host.capture import NVML_LATER
from ddx_tools.probes.host.findings import machine_findings
from ddx_tools.probes.nccl_log.probe import PROBE as NCCL_LOG
from ddx_tools.probes.nccl_log.probe import NcclLogArgs
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.hosts.nvml import read_gpus
from ddx_tools.sources.raw import RawItem

MIB = 1 << 20
NOT_SUPPORTED = 3
"""As a GPU without NVLink answered (nvidia-ml-py 13)."""
BY_HOST = "0 1 3 2 4 5 7 6"
"""Over four hosts with two GPUs each: 1 to 3, 2 to 4, 5 to 7 and 6 to 0 cross hosts."""


def ports(sent: int, received: int, device: str = "mlx5_0") -> RawItem:
    """A reading of sysfs, whose counters have units of four bytes."""
    path = f"/sys/class/infiniband/{device}/ports/1/counters"
    return text(f"{path}/port_xmit_data:{sent // 4}\n{path}/port_rcv_data:{received // 4}\n")


def logs(ring: str = BY_HOST) -> list[Log]:
    made = world(8, gpus_per_host=2)
    made[0].info(f"Channel 00/01 : {ring}")
    for log in made:
        log.info("Connected all rings, use ring PXN 0 GDR 1")
    return made


def flow_findings(tmp_path: Path, written: Sequence[Log], readings: Mapping[str, Sequence[RawItem]]) -> list[Finding]:
    raw = NCCL_LOG.capture(LocalHost("unknown"), NcclLogArgs(target=[str(write(tmp_path / "logs", written))]))
    with Store() as store:
        store.insert(dict(NCCL_LOG.parse(raw)))
        store.insert({"host_facts": rows_of(*readings.items())})
        return [found for found in machine_findings(store) if found.code == "network.flow_stops"]


def hosts_of(written: Sequence[Log]) -> list[str]:
    return list(dict.fromkeys(log.node for log in written))


def moved(carried: Sequence[tuple[int, int]], written: Sequence[Log]) -> dict[str, list[RawItem]]:
    """Two readings of each host, which sent and received so much in between, through two ports."""
    return {
        host: [
            interfaces(interface("eth0", "10.0.0.7")),
            ports(10 * MIB, 20 * MIB), ports(5 * MIB, 5 * MIB, "mlx5_1"),
            ports(10 * MIB + sent, 20 * MIB + received), ports(5 * MIB, 5 * MIB, "mlx5_1"),
        ]
        for host, (sent, received) in zip(hosts_of(written), carried, strict=True)
    }  # fmt: skip


def test_the_edge_between_two_hosts_where_bytes_do_not_arrive(tmp_path: Path) -> None:
    written = logs()
    lost = [(0, 0), (40 * MIB, 0), (0, 0), (0, 0)]
    (found,) = flow_findings(tmp_path, written, moved(lost, written))
    here, there = hosts_of(written)[1:3]
    assert (found.attributes["between"], found.attributes["over"]) == ([here, there], "rdma")
    assert (found.attributes["sent_bytes"], found.attributes["received_bytes"]) == (40 * MIB, 0)
    assert (found.ranks, found.hosts, found.severity) == ([2, 4], [here, there], Severity.NOTICE)


@pytest.mark.parametrize(
    ("carried", "ring"),
    [
        pytest.param([(40 * MIB, 40 * MIB)] * 4, BY_HOST, id="all flows"),
        pytest.param([(2 * MIB, 2 * MIB)] * 4, BY_HOST, id="slowly"),
        pytest.param([(0, 0)] * 4, BY_HOST, id="all wait"),
        pytest.param([(0, 0), (40 * MIB, 0), (0, 0), (0, 40 * MIB)], BY_HOST, id="to another neighbour, as in a tree"),
        pytest.param([(0, 0), (4_096, 0), (0, 0), (0, 0)], BY_HOST, id="hardly anything"),
        pytest.param([(0, 0), (-40 * MIB, 0), (0, 0), (0, 0)], BY_HOST, id="a counter was reset"),
        pytest.param([(0, 0), (40 * MIB, 0), (0, 0), (0, 0)], "0 2 1 3 4 6 5 7", id="back and forth between hosts"),
    ],
)
def test_no_edge_is_named_where(carried: list[tuple[int, int]], ring: str, tmp_path: Path) -> None:
    written = logs(ring)
    assert not flow_findings(tmp_path, written, moved(carried, written))


def test_without_the_order_of_the_rings_no_edge_is_named(tmp_path: Path) -> None:
    written = world(8, gpus_per_host=2)
    assert not flow_findings(tmp_path, written, moved([(0, 0), (40 * MIB, 0), (0, 0), (0, 0)], written))


@pytest.mark.parametrize(("arrives", "lost"), [(0, True), (64 * MIB, False)])
def test_the_two_gpus_between_which_nvlink_loses_bytes(arrives: int, lost: bool, tmp_path: Path) -> None:
    written = world(4, gpus_per_host=4)
    written[0].info("Channel 00/01 : 0 1 2 3")

    def reading(**more: int) -> list[dict[str, Any]]:
        counted = {"nvlink_sent_bytes": MIB, "nvlink_received_bytes": MIB}
        sending = {"nvlink_sent_bytes": MIB + more["sent"]}
        receiving = {"nvlink_received_bytes": MIB + more["received"]}
        return [gpu(0, **counted), gpu(1, **counted | sending), gpu(2, **counted | receiving), gpu(3, **counted)]

    first, later = nvml(*reading(sent=0, received=0)), nvml(*reading(sent=64 * MIB, received=arrives))
    items = [first, RawItem(NVML_LATER, later.data, "raw/nvml_later.json")]
    found = flow_findings(tmp_path, written, {hosts_of(written)[0]: items})
    assert [(one.attributes["over"], one.ranks) for one in found] == ([("nvlink", [1, 2])] if lost else [])


def test_nvml_counts_what_all_links_of_a_gpu_carried() -> None:
    def values(_: object, fields: list[tuple[int, int]]) -> list[SimpleNamespace]:
        assert [scope for _, scope in fields] == [0xFFFFFFFF] * 2
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=c_ulonglong(kib).value)) for kib in (7, 9)]

    module = fake(
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetFieldValues=values,
        nvmlDeviceGetPciInfo=lambda _: SimpleNamespace(busId="00000000:04:00.0"),
    )
    (only,) = json.loads(read_gpus(lambda: module))["gpus"]
    assert (only["nvlink_sent_bytes"], only["nvlink_received_bytes"]) == (7 << 10, 9 << 10)
    refused = fake(
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetFieldValues=lambda *_: [
            SimpleNamespace(nvmlReturn=NOT_SUPPORTED, value=SimpleNamespace(ullVal=0))
        ] * 2,
    )  # fmt: skip
    assert "nvlink_sent_bytes" not in json.loads(read_gpus(lambda: refused))["gpus"][0]
