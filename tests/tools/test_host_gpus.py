"""What nvidia-smi prints: the table, -q, topo, nvlink, and its failures."""

from __future__ import annotations

import pytest
from host_reading import CONSTRUCTED, codes, facts_in, findings_in, findings_of, one

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.probes.host.findings import with_ranks


def test_the_table_of_a_host_with_troubles() -> None:
    found = findings_of(CONSTRUCTED / "nvidia_smi_faults.txt")
    error = one(found, "gpu.memory_error")
    assert (error.attributes["devices"], error.attributes["kind"]) == (["0000:18:00.0"], "uncorrectable")
    assert error.evidence[0].line == 9
    shared = one(found, "gpu.several_processes")
    assert (shared.attributes["gpus"], shared.attributes["on_other_gpus"]) == ([0], [41002])
    unavailable = {f.attributes["what"]: f.attributes["devices"] for f in found if f.code == "device.unavailable"}
    assert unavailable == {"unreadable": ["0000:3a:00.0"], "prohibited": ["0000:2a:00.0"]}


@pytest.mark.parametrize("name", ["nvidia_smi_healthy.txt", "nvidia_smi_old_driver.txt", "nvidia_smi_q_healthy.txt"])
def test_healthy_gpus_raise_nothing(name: str) -> None:
    assert findings_of(CONSTRUCTED / name) == []


def test_the_table_is_read_with_its_figures() -> None:
    first, second = facts_in((CONSTRUCTED / "nvidia_smi_old_driver.txt").read_text(), "gpu")
    assert first["subject"] == "0000:1a:00.0"
    assert '"memory_total_bytes": 34057748480' in first["facts"]
    assert '"compute_mode": "E. Process"' in second["facts"]
    assert "ecc_uncorrectable" not in second["facts"]


def test_memory_that_nobody_owns_is_seen_only_where_others_list_theirs() -> None:
    healthy = (CONSTRUCTED / "nvidia_smi_healthy.txt").read_text()
    rows = healthy.splitlines(keepends=True)
    leftover = "".join(row for row in rows if "5002" not in row)
    found = one(findings_in(leftover), "gpu.memory_unaccounted")
    assert found.attributes["devices"] == ["0000:0f:00.0"]
    in_a_container = "".join(row for row in rows if "500" not in row)
    assert findings_in(in_a_container) == []


def test_a_long_query_says_what_is_wrong_with_each_gpu() -> None:
    found = findings_of(CONSTRUCTED / "nvidia_smi_q_faults.txt")
    assert {tuple(f.hosts) for f in found} == {("gpu-12",)}
    errors = {f.attributes["kind"]: f for f in found if f.code == "gpu.memory_error"}
    assert errors["uncorrectable"].attributes["devices"] == ["0000:2a:00.0"]
    assert errors["uncorrectable"].severity is Severity.FAILURE
    assert errors["past_uncorrectable"].attributes["devices"] == ["0000:18:00.0"]
    assert errors["past_uncorrectable"].severity is Severity.NOTICE
    throttled = one(found, "gpu.throttled")
    assert throttled.attributes["reasons"] == ["hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown"]
    assert (throttled.attributes["hard"], throttled.severity) == (True, Severity.WARNING)
    assert throttled.attributes["temperature_c"] == {"0000:18:00.0": 88}
    assert throttled.evidence[0].quote == "HW Slowdown                       : Active"
    assert one(found, "gpu.nvlink_error").attributes["what"] == "fabric"


def test_a_power_limit_under_load_is_no_trouble() -> None:
    text = (CONSTRUCTED / "nvidia_smi_q_healthy.txt").read_text()
    capped = text.replace("SW Power Cap                      : Not", "SW Power Cap                      :")
    found = one(findings_in(capped), "gpu.throttled")
    assert (found.severity, found.attributes["hard"]) == (Severity.INFO, False)


def test_a_remap_that_failed_is_the_worst() -> None:
    text = (CONSTRUCTED / "nvidia_smi_q_faults.txt").read_text()
    failed = text.replace("Remapping Failure Occurred        : No", "Remapping Failure Occurred        : Yes")
    found = one(findings_in(failed), "gpu.memory_error")
    assert (found.attributes["kind"], len(found.attributes["devices"])) == ("remap_failed", 2)


def test_nvlink_between_all_gpus() -> None:
    found = one(findings_of(CONSTRUCTED / "topo_nvswitch.txt"), "gpu.topology")
    assert found.attributes["nvlink"] is True
    assert (found.attributes["gpus"], found.attributes["worst"], found.severity) == (3, "NV", Severity.INFO)


def test_gpus_across_sockets_without_peer_access() -> None:
    found = one(findings_of(CONSTRUCTED / "topo_pcie.txt"), "gpu.topology")
    assert found.attributes["nvlink"] is False
    assert (found.attributes["worst"], found.attributes["peer_access"]) == ("SYS", False)


def test_one_pair_without_nvlink_is_enough_for_not_all() -> None:
    text = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV4\tNODE\nGPU1\tNV4\t X \tNV4\nGPU2\tNODE\tNV4\t X \n"
    found = one(findings_in(text), "gpu.topology")
    assert (found.attributes["nvlink"], found.attributes["worst"]) == (False, "NODE")


def test_links_that_are_down_or_count_errors_and_a_dead_fabric_manager() -> None:
    found = findings_of(CONSTRUCTED / "nvlink_states.txt")
    errors = {f.attributes["what"]: f for f in found}
    assert errors.keys() == {"inactive", "counters", "fabric_manager"}
    assert errors["inactive"].evidence[0].line == 6
    assert errors["counters"].evidence[0].quote == "Link 0: CRC Errors: 9127"


def test_links_that_are_wired_nowhere_are_no_fault() -> None:
    gpu = "GPU {0}: NVIDIA H100 (UUID: GPU-0000000{0})\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
    assert findings_in(gpu.format(0) + gpu.format(1)) == []
    running = "● nvidia-fabricmanager.service - x\n     Active: active (running) since Sat\n"
    assert findings_in(running) == []


@pytest.mark.parametrize(
    ("text", "code", "what"),
    [
        ("No devices were found\n", "device.unavailable", "none_seen"),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure …",
            "device.unavailable",
            "driver_not_running",
        ),
        (
            "Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error",
            "gpu.off_bus",
            None,
        ),
        (
            "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover",
            "gpu.off_bus",
            None,
        ),
    ],
)
def test_failures_of_nvidia_smi_itself(text: str, code: str, what: str | None) -> None:
    found = one(findings_in(text), code)
    assert found.attributes.get("what") == what
    assert codes(findings_in(text)) == {code}


@pytest.mark.parametrize(
    ("code", "attributes", "ranks"),
    [
        ("gpu.xid", {"devices": ["0000:9d:00"]}, [11]),
        ("gpu.off_bus", {"devices": ["0000:9d:00", "0000:9d:00.0"]}, [11]),
        ("gpu.off_bus", {"devices": ["0000:52:00"]}, []),
        ("gpu.off_bus", {"devices": ["0001:9d:00"]}, []),
        ("host.oom_kill", {"pid": 4_177}, [11]),
        ("host.oom_kill", {"pid": 4_178}, []),
        ("host.oom_kill", {}, []),
    ],
)
def test_a_gpu_and_a_process_of_a_host_have_the_rank_that_nccl_names_beside_them(
    code: str, attributes: dict[str, object], ranks: list[int]
) -> None:
    finding = Finding(code=code, hosts=["node-2"], summary="seen", attributes=attributes)
    elsewhere = finding.model_copy(update={"hosts": ["node-3"], "ranks": []})
    member = {"host": "node-2", "pid": 4_177, "rank": 11, "nranks": 16, "bus_id": "9D000"}
    with Store() as store:
        store.insert({"nccl_ranks": [member]})
        assert [one.ranks for one in with_ranks(store, [finding, elsewhere])] == [ranks, []]


@pytest.mark.parametrize(("device", "ranks"), [(6, [38]), (5, [])], ids=["its GPU", "another GPU"])
def test_a_hot_gpu_has_the_rank_that_nccl_says_computes_there(device: int, ranks: list[int]) -> None:
    hot = Finding(code="gpu.throttled", hosts=["node-4"], summary="hot", attributes={"devices": ["6"]})
    member = {"host": "node-4", "rank": 38, "nranks": 64, "nvml_device": device}
    part = {"host": "node-4", "rank": 1, "nranks": 8, "nvml_device": 6}
    with Store() as store:
        store.insert({"nccl_ranks": [member, part]})
        assert [finding.ranks for finding in with_ranks(store, [hot])] == [ranks]
