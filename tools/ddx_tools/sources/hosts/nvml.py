"""The GPUs of this machine as NVML, NVIDIA's management library, reports them: JSON, one GPU per line.

    {"driver", "cuda", "nvml", "error", "gpus": [    error: null, or why NVML could not be used (driver_mismatch, nvml)
      {"index", "bus", "name", "uuid", "lost",       bus: as NVML writes it; lost: the driver has lost the GPU
       "memory_used_bytes", …, "throttle_reasons",   names and units as the readers of nvidia-smi have them
       "nvlinks": [{"link", "active", "errors"}],
       "nvlink_sent_bytes", "nvlink_received_bytes", data on all links since the driver was loaded
       "peers": [{"index", "level", "nvlink", "read"}], with the GPUs that come after it
       "processes": [{"pid", "type", "name", "memory_bytes"}]}]}

Values that a GPU or its driver does not provide are left out. Source: nvidia-ml-py 12 and 13 (pynvml.py), NVML API
Reference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from ctypes import byref
from importlib import import_module
from types import ModuleType
from typing import Any

from ddx_tools.model.errors import NotFound, NotPermitted
from ddx_tools.parsers.machine.nvidia_smi_query import CLOCK_REASONS

_ALL_LINKS = 0xFFFFFFFF
_MOST_GPUS, _MOST_LINKS, _MOST_PROCESSES = 64, 18, 256

_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_FABRIC_STATES = {0: "N/A", 1: "Not Started", 2: "In Progress", 3: "Completed"}


def read_gpus(load: Callable[[], ModuleType] = lambda: import_module("pynvml")) -> bytes:
    """Read all GPUs once, as JSON. Raises NotFound without library or driver, and NotPermitted."""
    try:
        nvml = load()
    except ImportError as error:
        raise NotFound("the package nvidia-ml-py is not installed", "pip install nvidia-ml-py") from error
    try:
        nvml.nvmlInit()
    except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded) as error:
        raise NotFound(f"no NVIDIA driver: {error}", "In a container: start it with --gpus all.") from error
    except nvml.NVMLError_NoPermission as error:
        raise NotPermitted(f"NVML: {error}", "Run ddx as the owner of the job, or with sudo.") from error
    except nvml.NVMLError as error:
        mismatch = isinstance(error, nvml.NVMLError_LibRmVersionMismatch)
        return _document({"error": "driver_mismatch" if mismatch else "nvml", "message": str(error)}, [])
    try:
        return _look(nvml)
    finally:
        nvml.nvmlShutdown()


def _look(nvml: ModuleType) -> bytes:
    ask = _Questions(nvml)
    cuda = ask("nvmlSystemGetCudaDriverVersion_v2")
    head = {
        "driver": ask("nvmlSystemGetDriverVersion"),
        "cuda": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        "nvml": ask("nvmlSystemGetNVMLVersion"),
        "error": None,
    }
    count = min(ask("nvmlDeviceGetCount") or 0, _MOST_GPUS)
    return _document(head, [_gpu(nvml, index, count) for index in range(count)])


def _document(head: dict[str, Any], gpus: list[dict[str, Any]]) -> bytes:
    lines = ",\n".join(json.dumps(gpu) for gpu in gpus)
    return f'{json.dumps(head)[:-1]}, "gpus": [\n{lines}\n]}}\n'.encode()


class _Questions:
    """Calls NVML for one GPU; returns None for what the GPU or driver cannot answer, and always for a lost GPU."""

    def __init__(self, nvml: ModuleType, *handle: object) -> None:
        self._nvml = nvml
        self._handle = handle
        self.lost = False

    def __call__(self, name: str, *arguments: object) -> Any:
        try:
            answer = getattr(self._nvml, name)(*self._handle, *arguments)
        except self._nvml.NVMLError_GpuIsLost:
            self.lost = True
        except (self._nvml.NVMLError, AttributeError):
            pass
        else:
            return _text(answer)
        return None


def _gpu(nvml: ModuleType, index: int, count: int) -> dict[str, Any]:
    handle = _Questions(nvml)("nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return {"index": index, "lost": True}
    ask = _Questions(nvml, handle)
    known = {
        "index": index,
        "bus": getattr(ask("nvmlDeviceGetPciInfo"), "busId", None),
        "name": ask("nvmlDeviceGetName"),
        "uuid": ask("nvmlDeviceGetUUID"),
        **_state(nvml, ask),
        **_memory_health(nvml, ask),
        **_pcie(ask),
        **_fabric(nvml, ask),
        "nvlinks": list(_links(nvml, ask)),
        **_carried(nvml, ask),
        "peers": list(_peers(nvml, ask, range(index + 1, count))),
        "processes": list(_processes(nvml, ask)),
    }
    known["lost"] = ask.lost
    return {name: _text(value) for name, value in known.items() if value is not None}


def _text(value: Any) -> Any:
    """Decode a value: older bindings return bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _state(nvml: ModuleType, ask: _Questions) -> dict[str, Any]:
    memory, busy = ask("nvmlDeviceGetMemoryInfo"), ask("nvmlDeviceGetUtilizationRates")
    power, cap = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetEnforcedPowerLimit")
    bits = ask("nvmlDeviceGetCurrentClocksEventReasons")
    bits = ask("nvmlDeviceGetCurrentClocksThrottleReasons") if bits is None else bits
    mig, perf = ask("nvmlDeviceGetMigMode"), ask("nvmlDeviceGetPerformanceState")
    modes = {nvml.NVML_COMPUTEMODE_DEFAULT: "Default", nvml.NVML_COMPUTEMODE_PROHIBITED: "Prohibited"}
    return {
        "memory_used_bytes": getattr(memory, "used", None),
        "memory_total_bytes": getattr(memory, "total", None),
        "utilisation_percent": getattr(busy, "gpu", None),
        "temperature_c": ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        "power_w": None if power is None else power / 1000,
        "power_cap_w": None if cap is None else cap / 1000,
        "clock_sm_mhz": ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        "clock_sm_most_mhz": ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        "throttle_reasons": None if bits is None else [name for bit, name in CLOCK_REASONS.items() if bits & bit],
        "perf": None if perf is None else f"P{perf}",
        "persistence": ask("nvmlDeviceGetPersistenceMode"),
        "mig": None if mig is None else "enabled" if mig[0] else "disabled",
        "compute_mode": modes.get(ask("nvmlDeviceGetComputeMode")),
    }


def _memory_health(nvml: ModuleType, ask: _Questions) -> dict[str, Any]:
    errors = {
        f"ecc_{span}_{kind}": ask("nvmlDeviceGetTotalEccErrors", number, counter)
        for span, counter in (("volatile", nvml.NVML_VOLATILE_ECC), ("aggregate", nvml.NVML_AGGREGATE_ECC))
        for kind, number in (
            ("correctable", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ("uncorrectable", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        )
    }
    rows = ask("nvmlDeviceGetRemappedRows")  # correctable, uncorrectable, pending, failure occurred
    retired = ask("nvmlDeviceGetRetiredPages", nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
    ecc = ask("nvmlDeviceGetEccMode")
    return {
        **errors,
        "ecc": None if ecc is None else bool(ecc[0]),
        "rows_remapped_correctable": rows and rows[0],
        "rows_remapped_uncorrectable": rows and rows[1],
        "remap_pending": None if rows is None else bool(rows[2]),
        "remap_failed": None if rows is None else bool(rows[3]),
        "pages_retired_uncorrectable": None if retired is None else len(retired),
        "retire_pending": ask("nvmlDeviceGetRetiredPagesPendingStatus"),
    }


def _pcie(ask: _Questions) -> dict[str, Any]:
    return {
        "pcie_width": ask("nvmlDeviceGetCurrPcieLinkWidth"),
        "pcie_width_most": ask("nvmlDeviceGetMaxPcieLinkWidth"),
        "pcie_generation": ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_generation_most": ask("nvmlDeviceGetMaxPcieLinkGeneration"),
    }


def _fabric(nvml: ModuleType, ask: _Questions) -> dict[str, Any]:
    """The GPU's state in the NVSwitch fabric; its status counts only once registration has completed."""
    found = nvml.c_nvmlGpuFabricInfo_t()
    if ask("nvmlDeviceGetGpuFabricInfo", byref(found)) is None:
        return {}
    status = "N/A" if found.state != 3 else "Success" if found.status == 0 else f"error {found.status}"
    return {"fabric_state": _FABRIC_STATES.get(found.state), "fabric_status": status}


def _links(nvml: ModuleType, ask: _Questions) -> Iterator[dict[str, Any]]:
    counters = {
        "replay": nvml.NVML_NVLINK_ERROR_DL_REPLAY,
        "recovery": nvml.NVML_NVLINK_ERROR_DL_RECOVERY,
        "crc_flit": nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
        "crc_data": nvml.NVML_NVLINK_ERROR_DL_CRC_DATA,
    }
    for link in range(_MOST_LINKS):
        active = ask("nvmlDeviceGetNvLinkState", link)
        if active is None:  # this GPU has no such link
            return
        counts = {name: ask("nvmlDeviceGetNvLinkErrorCounter", link, number) for name, number in counters.items()}
        yield {"link": link, "active": bool(active), "errors": {name: count for name, count in counts.items() if count}}


def _carried(nvml: ModuleType, ask: _Questions) -> dict[str, int]:
    """The data that all links of a GPU carried: NVML counts KiB."""
    fields = {
        "nvlink_sent_bytes": (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS),
        "nvlink_received_bytes": (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS),
    }
    values = ask("nvmlDeviceGetFieldValues", list(fields.values())) or []
    # An older driver or a GPU without links answers with an error per field.
    known = [int(value.value.ullVal) for value in values if value.nvmlReturn == nvml.NVML_SUCCESS]
    return {name: kib << 10 for name, kib in zip(fields, known, strict=True)} if len(known) == len(fields) else {}


def _peers(nvml: ModuleType, ask: _Questions, others: range) -> Iterator[dict[str, Any]]:
    for other in others:
        peer = _Questions(nvml)("nvmlDeviceGetHandleByIndex", other)
        if peer is None:
            continue
        level = ask("nvmlDeviceGetTopologyCommonAncestor", peer)
        nvlink = ask("nvmlDeviceGetP2PStatus", peer, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        read = ask("nvmlDeviceGetP2PStatus", peer, nvml.NVML_P2P_CAPS_INDEX_READ)
        yield {
            "index": other,
            "level": _LEVELS.get(level),
            "nvlink": nvlink == nvml.NVML_P2P_STATUS_OK,
            "read": None if read is None else read == nvml.NVML_P2P_STATUS_OK,
        }


def _processes(nvml: ModuleType, ask: _Questions) -> Iterator[dict[str, Any]]:
    system = _Questions(nvml)
    for kind, name in (("C", "nvmlDeviceGetComputeRunningProcesses"), ("G", "nvmlDeviceGetGraphicsRunningProcesses")):
        for process in (ask(name) or [])[:_MOST_PROCESSES]:
            yield {
                "pid": process.pid,
                "type": kind,
                "name": system("nvmlSystemGetProcessName", process.pid),
                "memory_bytes": process.usedGpuMemory,
            }
