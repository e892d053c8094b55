"""A live look at GPUs through NVML: constructed answers (shapes after nvidia-ml-py 13 and the NVML API Reference)."""

from __future__ import annotations

import json
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from host_looks import findings_of, gpu, nvml, processes, table_of, text, unavailable
from host_reading import codes, one
from process_snapshots import row, snapshot, torchrun_env

from ddx_tools.model.errors import NotFound
from ddx_tools.sources.hosts.nvml import read_gpus
from ddx_tools.sources.raw import RawItem

pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py")


def job(local_ranks: int = 2) -> RawItem:
    envs = [torchrun_env(rank, local_ranks) for rank in range(local_ranks)]
    rows = (row(41 + rank, 1, "python train.py", env=env) for rank, env in enumerate(envs))
    return processes(snapshot(*rows))


def test_healthy_gpus_raise_nothing_above_information() -> None:
    assert codes(findings_of(job(), nvml(gpu(0), gpu(1)))) == set()


@pytest.mark.parametrize(
    ("facts", "code", "attributes"),
    [
        ({"ecc_volatile_uncorrectable": 2}, "gpu.memory_error", {"kind": "uncorrectable", "count": 2}),
        ({"remap_pending": True}, "gpu.memory_error", {"kind": "remap_pending"}),
        ({"remap_failed": True}, "gpu.memory_error", {"kind": "remap_failed"}),
        ({"throttle_reasons": ["hw_thermal_slowdown"], "temperature_c": 91}, "gpu.throttled", {"hard": True}),
        ({"fabric_state": "In Progress", "fabric_status": "N/A"}, "gpu.nvlink_error", {"what": "fabric"}),
        ({"pcie_width": 4}, "host.pcie_link_narrow", {"width": 4, "possible": 16}),
        ({"compute_mode": "Prohibited"}, "device.unavailable", {"what": "prohibited"}),
        ({"nvlinks": [{"link": 3, "active": True, "errors": {"crc_flit": 9}}]}, "gpu.nvlink_error",
         {"what": "counters"}),
        ({"nvlinks": [{"link": link, "active": link != 3, "errors": {}} for link in range(18)]}, "gpu.nvlink_error",
         {"what": "inactive"}),
    ],
)  # fmt: skip
def test_one_sick_gpu_among_healthy_ones(facts: dict[str, Any], code: str, attributes: dict[str, Any]) -> None:
    found = one(findings_of(job(), nvml(gpu(0), gpu(1, **facts))), code)
    assert {key: found.attributes[key] for key in attributes} == attributes
    if "devices" in found.attributes:
        assert found.attributes["devices"] in (["0000:19:00.0"], ["GPU1"])


def test_a_gpu_that_is_lost_costs_only_itself() -> None:
    found = findings_of(nvml(gpu(0), {"index": 1, "bus": "00000000:19:00.0", "lost": True}))
    assert one(found, "gpu.off_bus").attributes["devices"] == ["0000:19:00.0"]


def test_libraries_and_driver_of_different_versions() -> None:
    found = findings_of(
        nvml(driver=None, error="driver_mismatch", message="RM has detected an NVML/RM version mismatch.")
    )
    assert one(found, "startup.versions_differ").attributes["what"] == "driver"


PCI = "/sys/bus/pci/devices/0000:{bus}:00.0/class:0x030200\n/sys/bus/pci/devices/0000:{bus}:00.0/vendor:0x10de\n"


def test_a_gpu_on_the_bus_that_the_driver_does_not_list() -> None:
    bus = text("".join(PCI.format(bus=bus) for bus in ("18", "19")))
    found = one(findings_of(nvml(gpu(0)), bus), "device.unavailable")
    assert (found.attributes["what"], found.attributes["devices"]) == ("not_listed", ["0000:19:00.0"])
    assert codes(findings_of(nvml(gpu(0), gpu(1)), bus)) == set()
    assert codes(findings_of(unavailable("GPUs"), bus)) == set()


def test_fewer_gpus_than_local_ranks() -> None:
    assert one(findings_of(job(4), nvml(gpu(0), gpu(1))), "device.unavailable").attributes["what"] == "fewer_than_ranks"
    assert codes(findings_of(job(4), nvml(gpu(0, mig="enabled"), gpu(1)))) == set()


def held(pid: int, mebibytes: int = 4_096) -> dict[str, Any]:
    return {"pid": pid, "type": "C", "name": "python", "memory_bytes": mebibytes << 20}


def test_memory_held_by_a_process_that_is_not_of_the_job() -> None:
    found = findings_of(job(), nvml(gpu(0, processes=[held(41), held(999)]), gpu(1, processes=[held(42)])))
    foreign = one(found, "gpu.foreign_process")
    assert (foreign.attributes["pids"], foreign.attributes["memory_bytes"]) == ([999], 4 << 30)


@pytest.mark.parametrize(
    "processes_on_it",
    [
        pytest.param([held(41), held(42)], id="ranks of the job"),
        pytest.param([held(41), held(999, 10)], id="next to nothing"),
        pytest.param([held(100_041), held(100_042)], id="pids of another pid namespace"),
    ],
)
def test_nobody_is_blamed_for(processes_on_it: list[dict[str, Any]]) -> None:
    found = findings_of(job(), nvml(gpu(0, processes=processes_on_it), gpu(1)))
    assert "gpu.foreign_process" not in codes(found)


def test_how_gpus_are_connected() -> None:
    peers = [{"index": 1, "level": "SYS", "nvlink": False, "read": False}]
    found = one(findings_of(nvml(gpu(0, peers=peers), gpu(1))), "gpu.topology")
    assert (found.attributes["worst"], found.attributes["peer_access"], found.attributes["nvlink"]) == (
        "SYS",
        False,
        False,
    )


def test_no_driver_is_not_the_same_as_well() -> None:
    rows = {row["topic"]: row["verdict"] for row in table_of(unavailable("GPUs"))}
    assert rows == {"GPUs": "not available here"}
    assert {row["verdict"] for row in table_of(nvml(gpu(0))) if row["topic"] == "gpu"} == {"ok"}


# --- reading NVML itself, through a library that knows little


def fake(**functions: Any) -> ModuleType:
    """The names of pynvml, with functions that answer or refuse as NVML does on old GPUs."""

    def refuse(*_: object) -> None:
        raise pynvml.NVMLError_NotSupported

    known = {key: value for key, value in vars(pynvml).items() if not key.startswith("nvml")}
    refused = {key: refuse for key in vars(pynvml) if key.startswith("nvml")}
    module = ModuleType("pynvml")
    vars(module).update(known | refused | {"nvmlInit": lambda: None, "nvmlShutdown": lambda: None} | functions)
    return module


def test_what_a_gpu_does_not_know_is_left_out() -> None:
    module = fake(
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda _: b"Tesla K80",
        nvmlDeviceGetPciInfo=lambda _: SimpleNamespace(busId=b"00000000:04:00.0"),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0x1 | 0x40,
    )
    (only,) = json.loads(read_gpus(lambda: module))["gpus"]
    assert only == {
        "index": 0, "name": "Tesla K80", "bus": "00000000:04:00.0", "lost": False,
        "throttle_reasons": ["hw_thermal_slowdown"], "nvlinks": [], "peers": [], "processes": [],
    }  # fmt: skip
    assert codes(findings_of(RawItem("nvml", read_gpus(lambda: module), "nvml.json"))) == {"gpu.throttled"}


def test_a_gpu_that_is_lost_while_one_asks() -> None:
    def lost(_: object) -> None:
        raise pynvml.NVMLError_GpuIsLost

    module = fake(
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda _: "H100",
        nvmlDeviceGetPciInfo=lambda _: SimpleNamespace(busId="00000000:3B:00.0"), nvmlDeviceGetMemoryInfo=lost,
    )  # fmt: skip
    found = findings_of(RawItem("nvml", read_gpus(lambda: module), "nvml.json"))
    assert one(found, "gpu.off_bus").attributes["devices"] == ["0000:3b:00.0"]


@pytest.mark.parametrize("error", [pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded])
def test_without_a_driver_there_is_nothing_to_read(error: type[Exception]) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(NotFound, match="no NVIDIA driver"):
        read_gpus(lambda: fake(nvmlInit=fail))


def test_without_the_library_it_says_what_to_install() -> None:
    def load() -> ModuleType:
        raise ImportError

    with pytest.raises(NotFound) as raised:
        read_gpus(load)
    assert "pip install nvidia-ml-py" in raised.value.help
