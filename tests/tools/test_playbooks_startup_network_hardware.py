"""The pages of startup, network and hardware, judged on findings made for the purpose.

For each cause: findings that must lead to it, a neighbour that looks alike and must not, and a case that stays open,
whose next check is the fact that separates. All shipped pages take part, so that no neighbour is left out by mistake.
"""

from __future__ import annotations

import pytest
from made_findings import first, judged, raised, seen, setting, timeout, told, unreachable

from ddx_tools.model import Verdict
from ddx_tools.playbook import Cause, load_playbooks

MISSING = seen("startup.missing_ranks", 0, joined=1, expected=2, timeout_s=900, endpoint="head:29500", stage="store")
PORT = seen("startup.port_in_use", 0, host="a", port=29500)
ABSENT = seen(
    "startup.missing_ranks", 0, 1, severity="warning", joined=2, expected=3, missing=[2], minority=True, apart=False,
    stage="store", basis="processes",
)  # fmt: skip
INVALID = seen("device.invalid", 1, 2, 3)
RETRY = seen("network.completion_error", 4, host="a", status=12, vendor_err=129, device="mlx5_1")
ECC = seen("gpu.memory_error", 5, host="a", kind="uncorrectable")
FAULT = seen("gpu.kernel_fault", 5, host="a", error="an illegal memory access was encountered")
ACS = seen("host.acs_redirects", severity="warning", bridges=["40:01.1"], on=1, total=4)
P2P_CURES = told("works_with_p2p_disabled")
HOT = seen("gpu.throttled", host="b", severity="warning", devices=["6"], reasons=["hw_thermal_slowdown"], hard=True)
HOT_RANK = seen("gpu.throttled", 14, host="b", severity="warning", devices=["6"], hard=True)
LATE = seen("rank.arrives_late", 14, host="b", severity="warning", late_s=0.2, others_last=0)
LINK_DOWN = seen("network.link_down", host="a", severity="warning", device="mlx5_1", state="down")
LOCKED = seen("limits.locked_memory", 3)
STEPS = seen("job.progress", severity="info", last_step={"rank 0": 40})
KILLED = seen("rank.killed", 3, signal="SIGKILL", independent=True)
CROSSED = seen("startup.versions_differ", *range(16), what="nccl", how="message_size", all_ranks=True)
OLD_IMAGE = seen("config.differs", host="node-5", severity="notice", variable="NCCL_VERSION", minority=[])
SILENT = seen("network.host_silent", host="b", severity="warning", address="10.0.0.2", port=41_000, to=["a"])
LOSSY = seen("network.packet_loss", host="a", severity="warning", how="since_connected", rate=0.06, peer="10.0.0.2")

DIAGNOSED = {
    "port-in-use": [PORT, raised(0, tells=["startup.port_in_use"])],
    "port-in-use, its peers waited": [PORT, raised(0, tells=["startup.port_in_use"]), unreachable(1, how="refused")],
    "port-in-use, by what is no store": [unreachable(1, how="foreign", address="head", port=29500)],
    "rendezvous-missing-rank": [MISSING, unreachable(1, how="refused", address="10.0.0.1", loopback=False)],
    "rendezvous-missing-rank, too few hosts": [MISSING, setting("only_on_first_host")],
    "rendezvous-missing-rank, by the processes": [ABSENT, seen("rank.process_gone", 2)],
    "rank-crashed, before the meeting": [ABSENT, seen("rank.process_gone", 2), raised(2)],
    "rendezvous-wrong-endpoint, as set": [MISSING, setting("loopback_endpoint")],
    "rendezvous-wrong-endpoint": [MISSING, unreachable(1, how="refused", address="127.0.0.1", loopback=True)],
    "rendezvous-wrong-endpoint, unresolved": [unreachable(1, how="unresolved", address="node-17")],
    "firewall-or-unreachable": [unreachable(1, how="no_route", address="10.0.0.1", port=29500), MISSING],
    "firewall-or-unreachable, one host's ports": [
        unreachable(host="a", how="timed_out", stage="peers", address="10.0.0.2", port=41_000),
        SILENT,
        timeout(0, 1),
    ],
    "firewall-or-unreachable, an interface that is down": [
        seen("network.link_down", host="b", severity="warning", device="eth0", state="set_down", in_use=True),
        seen("network.packet_loss", host="a", severity="warning", how="stalled"),
        timeout(0, 1),
    ],
    "packet-loss, and it is slow": [LOSSY, told("slow_not_stuck")],
    "wrong-network-interface, loopback between hosts": [
        unreachable(0, 1, how="refused", stage="peers", address="127.0.0.1", loopback=True),
        told("works_on_one_node"),
    ],
    "version-mismatch, one image": [CROSSED, OLD_IMAGE, raised(*range(16), signature="torch_nccl_error")],
    "wrong-network-interface": [seen("startup.interface_unusable", 0, 1, interface="eth7")],
    "wrong-network-interface, its own name": [
        seen("network.hostname_loopback", host="b", severity="warning", several_hosts=True),
        unreachable(1, how="refused", stage="peers", address="127.0.1.1", loopback=True),
    ],
    "wrong-network-interface, mixed": [seen("network.connection_failed", 8, stage="rdma", how="incompatible")],
    "wrong-network-interface, cured": [
        unreachable(1, stage="peers"),
        told("works_with_interface_chosen"),
    ],
    "device-assignment": [INVALID, raised(1, 2, 3, tells=["device.invalid"])],
    "device-assignment, bound": [INVALID, setting("gpus_bound_to_task"), raised(1, 2, 3, tells=["device.invalid"])],
    "device-assignment, twice": [
        seen("device.duplicate", 0, 1, devices=["1b000"]),
        raised(0, 1, signature="torch_nccl_error"),
    ],
    "version-mismatch": [seen("startup.versions_differ", 8, what="nccl", versions={"22602": [], "22705": []})],
    "locked-memory-limit": [LOCKED, seen("limits.locked_memory", severity="notice", limit_bytes=65536)],
    "ib-link-fault": [RETRY, LINK_DOWN],
    "ib-retry-exceeded": [RETRY, seen("network.gid_suspect", severity="warning", why="no_rocev2_ipv4")],
    "ib-retry-exceeded, cured": [RETRY, told("works_with_gid_index")],
    "mtu-mismatch": [seen("network.mtu_differs", severity="warning", mtus={"a": 9000, "b": 1500}), RETRY],
    "wrong-network-interface, one address on all": [
        seen("startup.interface_unusable", 0, 8, interface="usb0", address="169.254.3.1", shared_by=["a", "b"]),
        unreachable(8, how="closed", stage="communicator"),
        raised(8, signature="torch_nccl_error"),
    ],
    "rendezvous-wrong-endpoint, each its own": [
        setting("own_host_endpoint"),
        unreachable(1, how="timed_out", address="n2", port=29500, stage="store"),
    ],
    "version-mismatch, of the fabric manager": [
        seen("device.unavailable", 0, what="fabric_manager"),
        seen("startup.versions_differ", host="a", what="fabric_manager"),
    ],
    "locked-memory-limit, without its reason": [
        seen("limits.locked_memory", 3, reason="not_said"),
        seen("limits.locked_memory", severity="notice", limit_bytes=65536),
        raised(3, signature="torch_nccl_error"),
    ],
    "mtu-mismatch, on the way": [
        seen("network.mtu_differs", severity="warning", how="path", arrives_bytes=1500, vanishes_bytes=9000),
        seen("network.packet_loss", severity="warning", how="stalled"),
        timeout(0, 1),
    ],
    "slow-transport-fallback, beside idle devices": [
        seen("transport.chosen", severity="info", network="Socket"),
        seen("network.rdma_devices", severity="info", active=8, missing=True),
        told("slow_not_stuck"),
    ],
    "packet-loss, while it is slow": [
        seen("network.packet_loss", host="a", severity="warning", how="between_readings"),
        seen("job.slowing", severity="notice"),
    ],
    "below-expected-bandwidth, a narrow link": [
        seen("host.pcie_link_narrow", host="a", severity="warning", devices=["0000:17:00.0"], width=4),
        told("slow_not_stuck"),
    ],
    "packet-loss": [seen("network.packet_loss", host="a", severity="warning", rate=0.02), RETRY],
    "slow-transport-fallback": [
        seen("transport.downgraded", severity="warning", expected="IB", used="Socket"),
        told("slow_not_stuck"),
        seen("job.slowing", severity="warning"),
        seen("rank.arrives_late", 3, others_last=5),
    ],
    "p2p-blocked-by-iommu": [ACS, P2P_CURES, told("hangs")],
    "p2p-blocked-by-iommu, refused": [
        seen("host.kernel_message", host="a", severity="warning", what="io_page_fault"),
        told("gpu_busy_while_stuck"),
    ],
    "gpu-fell-off-bus": [seen("gpu.xid", host="a", xid=79, **{"class": "bus"}), timeout(0, 1)],
    "gpu-fell-off-bus, its kernel failed": [
        seen("gpu.off_bus", 5, host="a"),
        FAULT,
        raised(5, tells=["gpu.kernel_fault"]),
    ],
    "gpu-memory-error": [ECC, raised(5, tells=["gpu.memory_error"])],
    "gpu-memory-error, by Xid": [seen("gpu.xid", 5, host="a", xid=94, **{"class": "memory"}), FAULT],
    "nvlink-fault": [seen("gpu.xid", host="a", xid=74, **{"class": "nvlink"}), timeout(0, 1)],
    "nvlink-fault, no fabric": [
        seen("device.unavailable", 0, what="fabric_manager"),
        raised(0, tells=["device.unavailable"]),
    ],
    "gpu-kernel-fault": [FAULT, raised(5, tells=["gpu.kernel_fault"])],
    "gpu-kernel-fault, aborted": [FAULT, seen("rank.killed", 5, signal="SIGABRT", independent=True)],
    "thermal-or-power-throttle": [HOT, LATE],
    "slow-rank-before-collective": [seen("rank.progress_continues", 0, what="Map", percent=9), timeout(1, 2, 3)],
    "uneven-data": [seen("rank.steps_behind", 1), told("ranks_differ_in_batches"), timeout(0)],
    "host-oom-killed": [
        seen("rank.killed", 3, signal="SIGKILL", independent=True),
        seen("host.oom_kill", pid=4711),
    ],
    "host-oom-killed, of whom there is no record": [
        seen("rank.waited_for", 9, state="no_record", moving=False, tie=False, count=1),
        seen("host.oom_kill", 9, host="c", pid=811),
        timeout(0, 1),
    ],
    "host-oom-killed, a worker": [
        seen("data.worker_died", 3, signal="SIGKILL"),
        seen("host.oom_kill", pid=4711),
        raised(3, tells=["data.worker_died"]),
    ],
    "module-skipped-on-rank": [
        seen("collective.shape_mismatch", 0, 1, tie=True, operation="all_reduce"),
        told("conditional_modules"),
        timeout(0, 1),
    ],
    "gpu-hung": [seen("gpu.xid", 2, host="a", xid=119, **{"class": "driver"}), timeout(0, 1)],
    "rank-crashed": [raised(2), seen("collective.connection_lost", 0, 1, severity="notice")],
    "thermal-or-power-throttle, of the rank that all wait for": [
        HOT_RANK,
        seen("rank.waited_for", 14, state="outside", moving=False, tie=False),
    ],
}


@pytest.mark.parametrize("case", DIAGNOSED)
def test_findings_that_lead_to_a_cause(case: str) -> None:
    diagnosis = judged(*DIAGNOSED[case])
    assert first(diagnosis) == case.partition(",")[0]
    assert diagnosis.verdict is Verdict.DIAGNOSED
    assert diagnosis.fix and diagnosis.verify
    assert "unknown" not in " ".join([*diagnosis.fix, *diagnosis.verify])


NEIGHBOURS = {
    "no port": ("port-in-use", [MISSING, unreachable(1, how="refused")]),
    "the port was taken": ("rendezvous-missing-rank", [PORT, MISSING]),
    "localhost on one host is right": ("rendezvous-wrong-endpoint", [unreachable(1, how="refused", loopback=True)]),
    "no wire to the host itself": (
        "firewall-or-unreachable",
        [unreachable(1, how="timed_out", loopback=True), MISSING],
    ),
    "an interface that was only noticed": (
        "wrong-network-interface",
        [seen("startup.interface_unusable", 0, severity="notice", interface="eth0"), timeout(0, 1)],
    ),
    "a GPU is gone": ("device-assignment", [INVALID, seen("gpu.off_bus", host="a")]),
    "drivers may differ": (
        "version-mismatch",
        [seen("startup.versions_differ", severity="notice", what="driver"), timeout(0, 1)],
    ),
    "a low limit that hurt nobody": (
        "locked-memory-limit",
        [seen("limits.locked_memory", severity="notice", limit_bytes=65536), raised(2)],
    ),
    "a port without a cable": (
        "ib-link-fault",
        [seen("network.link_down", severity="notice", device="mlx5_7", state="down"), timeout(0, 1)],
    ),
    "the peer was killed": (
        "ib-retry-exceeded",
        [RETRY, seen("rank.killed", 7, signal="SIGKILL", independent=True), seen("host.oom_kill", pid=4711)],
    ),
    "an MTU below the largest": (
        "mtu-mismatch",
        [seen("network.mtu_differs", severity="info", how="below_max"), timeout(0, 1)],
    ),
    "slow paths hang nobody": (
        "slow-transport-fallback",
        [
            seen("transport.downgraded", severity="warning", expected="P2P", used="SHM"),
            timeout(0, 1),
            told("slow_not_stuck"),
        ],
    ),
    "P2P off does not help": (
        "p2p-blocked-by-iommu",
        [ACS, told("works_with_p2p_disabled", negated=True), told("hangs")],
    ),
    "GPUs on NVLink": (
        "p2p-blocked-by-iommu",
        [ACS, P2P_CURES, told("hangs"), seen("gpu.topology", severity="info", nvlink=True, worst="NV")],
    ),
    "the memory is faulty": ("gpu-kernel-fault", [FAULT, ECC]),
    "always the same host": (
        "gpu-kernel-fault",
        [FAULT, told("always_the_same_host"), seen("host.jobs_failed", host="a")],
    ),
    "corrected by the memory itself": (
        "gpu-memory-error",
        [seen("gpu.memory_error", host="a", severity="info", kind="correctable"), timeout(0, 1)],
    ),
    "links of a lost GPU": (
        "nvlink-fault",
        [seen("gpu.nvlink_error", host="a", severity="warning"), seen("gpu.off_bus", host="a")],
    ),
    "hot, and all wait for another rank": (
        "thermal-or-power-throttle",
        [
            HOT_RANK,
            seen("rank.waited_for", 3, state="outside", moving=False, tie=False),
            seen("collective.peers_wait", 0, 1, basis="flight_records", operation="all_reduce"),
        ],
    ),
    "at its power limit, like all": (
        "thermal-or-power-throttle",
        [seen("gpu.throttled", host="b", severity="info", reasons=["sw_power_cap"]), LATE],
    ),
    "the Xid says what hung": ("gpu-hung", [seen("gpu.xid", 2, xid=79, **{"class": "bus"}), timeout(0, 1)]),
    "time mends no mismatch": (
        "timeout-too-short",
        [told("works_with_longer_timeout"), seen("collective.operation_mismatch", 0, minority=True), timeout(0, 1)],
    ),
    "another process of that host was killed": (
        "host-oom-killed",
        [
            seen("rank.waited_for", 9, state="no_record", moving=False, tie=False, count=1),
            seen("host.oom_kill", 10, host="c", pid=812),
            timeout(0, 1),
        ],
    ),
    "killed in every run": ("rank-crashed", [KILLED, told("fails_every_time")]),
    "messages of another size, and images alike": ("version-mismatch", [CROSSED, raised(*range(16))]),
    "the two have talked": ("ib-retry-exceeded", [RETRY, STEPS, timeout(0, 1)]),
    "loopback on one host": (
        "wrong-network-interface",
        [unreachable(0, 1, how="refused", stage="peers", address="127.0.0.1", loopback=True)],
    ),
    "equal batches": (
        "uneven-data",
        [told("fails_at_epoch_end"), told("ranks_differ_in_batches", negated=True), timeout(0, 1)],
    ),
}


@pytest.mark.parametrize("case", NEIGHBOURS)
def test_a_neighbour_is_not_taken_for_it(case: str) -> None:
    cause, findings = NEIGHBOURS[case]
    diagnosis = judged(*findings)
    assert not (diagnosis.verdict is Verdict.DIAGNOSED and first(diagnosis) == cause)


OPEN = {
    "who is missing, or cannot come": ([MISSING], "rendezvous-missing-rank", "nc -vz"),
    "the master is itself, or not there": (
        [unreachable(1, how="refused", address="127.0.0.1", loopback=True)],
        "rendezvous-wrong-endpoint",
        "getent hosts",
    ),
    "silence from an address": (
        [unreachable(1, how="timed_out", address="10.0.3.17", port=29500), MISSING],
        "firewall-or-unreachable",
        "nc -vz",
    ),
    "a connection that was never made": (
        [seen("network.connection_failed", 8, peer="172.17.0.1", how="timed_out")],
        "firewall-or-unreachable",
        "ip -br addr",
    ),
    "all began, none ended": (
        [seen("startup.communicator_incomplete", 0, 1, started=[0, 1], completed=[], never_started=[])],
        "wrong-network-interface",
        "ip -br addr",
    ),
    "P2P off helps": ([P2P_CURES, told("hangs")], "p2p-blocked-by-iommu", "ACSCtl"),
    "GPUs spin at the first collective": (
        [told("gpu_busy_while_stuck"), told("hangs"), told("no_nvlink")],
        "p2p-blocked-by-iommu",
        "NCCL_P2P_DISABLE=1",
    ),
    "a longer limit helps": (
        [told("works_with_longer_timeout"), timeout(1, 2, 3)],
        "slow-rank-before-collective",
        "py-spy dump",
    ),
    "it fails at the end of the epoch": ([told("fails_at_epoch_end"), timeout(0, 1)], "uneven-data", "len(loader)"),
    "a kernel fault on one host": (
        [FAULT, told("always_the_same_host"), seen("host.jobs_failed", host="a")],
        "gpu-memory-error",
        "ROW_REMAPPER",
    ),
    "sizes differ, and the batches are of different kinds": (
        [
            seen("collective.shape_mismatch", 0, 1, basis="log", operation="all_gather", tie=True),
            told("variable_batches"),
        ],
        "collective-shape-mismatch",
        "p.grad is None",
    ),
    "killed in every run, by whom is not said": ([KILLED, told("fails_every_time")], "host-oom-killed", "dmesg"),
    "a peer that answered before": ([RETRY, STEPS, timeout(0, 1)], "ib-link-fault", "ibstat"),
    "messages of another size": ([CROSSED], "version-mismatch", "torch.cuda.nccl.version()"),
    "NCCL failed, and nobody says of what": (
        [raised(3, signature="torch_nccl_error")],
        "rank-crashed",
        "NCCL_DEBUG=WARN",
    ),
}


@pytest.mark.parametrize("case", OPEN)
def test_an_open_case_asks_for_the_fact_that_separates(case: str) -> None:
    findings, among, question = OPEN[case]
    diagnosis = judged(*findings)
    assert diagnosis.verdict is Verdict.UNDECIDED
    assert among in {cause.id for cause in diagnosis.causes}
    assert diagnosis.next_check is not None
    assert question in diagnosis.next_check.question


LED = {
    "who listens": ([PORT], "ss -ltnp 'sport = :29500'"),
    "the GPUs that each task sees": ([INVALID], "CUDA_VISIBLE_DEVICES"),
    "the GID index of RoCE": ([RETRY, seen("network.gid_suspect", severity="info", why="table_unknown")], "show_gids"),
    "the GID index": ([RETRY], "show_gids"),
    "the limit inside the job": ([LOCKED], "/proc/PID/limits"),
    "ACS": ([ACS, P2P_CURES, told("hangs")], "ACSCtl"),
    "versions that are loaded": ([seen("startup.versions_differ", what="nccl")], "torch.cuda.nccl.version()"),
    "counters of the memory": ([ECC], "ROW_REMAPPER"),
    "the Xid behind a fault": ([FAULT], "dmesg -T | grep -i xid"),
}


@pytest.mark.parametrize("case", LED)
def test_a_named_cause_asks_for_what_would_confirm_it(case: str) -> None:
    findings, question = LED[case]
    diagnosis = judged(*findings)
    assert diagnosis.verdict is Verdict.DIAGNOSED
    assert diagnosis.next_check is not None
    assert question in diagnosis.next_check.question


# --- the pages themselves


CATEGORIES = ("startup", "network", "hardware")
PAGES = [page for page in load_playbooks().causes.values() if page.category in CATEGORIES]


@pytest.mark.parametrize("page", PAGES, ids=[page.id for page in PAGES])
def test_a_page_of_these_categories_has_all_that_a_tired_person_needs(page: Cause) -> None:
    assert page.prevent and page.harmful
    assert [check for check in page.next_check if check.probe == "ask"]
