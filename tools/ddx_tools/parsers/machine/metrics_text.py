"""Reads metrics pages in Prometheus' text format, as saved by `curl HOST:PORT/metrics`, with prometheus-client.

    DCGM_FI_DEV_XID_ERRORS{gpu="5",UUID="GPU-…",pci_bus_id="00000000:B7:00.0",Hostname="node2",…} 79
    accelerator_nvidia_xid_errors_total{gpud_component="…",uuid="GPU-…",xid="79"} 1
    node_infiniband_link_downed_total{device="mlx5_3",port="1"} 4
    node_network_receive_errs_total{device="eth0"} 51
    XPU_TIMER_COMMON_HANG{ip="11.36.23.0",job_name="…",local_rank="4",pod_name="…-worker-0",rank="4"} 1

Names: dcgm-exporter 3.3 to 4.9 (etc/dcp-metrics-included.csv), GPUd 0.9 (components/accelerator/nvidia/*/metrics.go),
node_exporter 1.9 (collector/infiniband_linux.go, netdev_common.go), xpu_timer of DLRover 0.6
(xpu_timer/common/manager.cc: an operation has run on the GPU for more than XPU_TIMER_HANG_TIMEOUT, 300 s by default).
DCGM's Xid is the last one since the exporter started. A page has no time stamp; `metrics_series` reads the same metrics
with their times.

Topics: `kernel` (Xids), `gpu_query`, `nvlink`, `port_errors`, as in the readers of other texts; `hang_flag`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddx_tools.parsers.machine.host_text import HostFact, TextLine, bus_id

NEEDLES = (
    "DCGM_FI_", "DCGM_EXP_", "accelerator_nvidia_", "node_infiniband_",
    "node_network_receive_errs_total", "node_network_transmit_errs_total", "XPU_TIMER_COMMON_HANG",
)  # fmt: skip
_HOST_LABELS = ("Hostname", "hostname", "node", "pod_name")
_NO_HOST = (None, "", "NOT_SET")
"""xpu_timer writes NOT_SET where a variable is missing."""
LEAST_BLANK = 9.2e18
"""DCGM writes the largest integers for missing values (DCGM_INT64_BLANK and above)."""

_OF_A_GPU: dict[str, str] = {
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "ecc_volatile_uncorrectable",
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": "ecc_volatile_correctable",
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": "ecc_aggregate_uncorrectable",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": "rows_remapped_uncorrectable",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": "remap_failed",
    "DCGM_FI_DEV_ROW_REMAP_PENDING": "remap_pending",
    "DCGM_FI_DEV_GPU_TEMP": "temperature_c",
    "DCGM_FI_DEV_SM_CLOCK": "clock_sm_mhz",
    "DCGM_FI_DEV_POWER_USAGE": "power_w",
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": "power_cap_w",
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": "power_cap_w",
    "DCGM_FI_DEV_GPU_UTIL": "utilisation_percent",
    "accelerator_nvidia_ecc_volatile_total_uncorrected": "ecc_volatile_uncorrectable",
    "accelerator_nvidia_ecc_volatile_total_corrected": "ecc_volatile_correctable",
    "accelerator_nvidia_ecc_aggregate_total_uncorrected": "ecc_aggregate_uncorrectable",
    "accelerator_nvidia_remapped_rows_due_to_uncorrectable_errors": "rows_remapped_uncorrectable",
    "accelerator_nvidia_remapped_rows_remapping_failed": "remap_failed",
    "accelerator_nvidia_remapped_rows_remapping_pending": "remap_pending",
    "accelerator_nvidia_temperature_current_celsius": "temperature_c",
}
_REASONS = {
    "accelerator_nvidia_clock_hw_slowdown": "hw_slowdown",
    "accelerator_nvidia_clock_hw_slowdown_thermal": "hw_thermal_slowdown",
    "accelerator_nvidia_clock_hw_slowdown_power_brake": "hw_power_brake_slowdown",
}
_REASON_BITS = {
    0x8: "hw_slowdown", 0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake_slowdown",
}  # fmt: skip
"""nvmlClocksEventReasons from nvml.h, without those that are part of normal operation."""
_REASON_MASKS = ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS")
_NVLINK = {
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": "CRC FLIT errors",
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": "CRC data errors",
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": "replay errors",
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": "recovery errors",
    "accelerator_nvidia_nvlink_replay_errors": "replay errors",
    "accelerator_nvidia_nvlink_recovery_errors": "recovery errors",
    "accelerator_nvidia_nvlink_crc_errors": "CRC errors",
}
_PORT_ERRORS = (
    "link_downed", "link_error_recovery", "port_receive_errors", "port_receive_remote_physical_errors",
    "port_constraint_errors_received", "port_constraint_errors_transmitted", "port_discards_transmitted",
    "symbol_error", "local_link_integrity_errors", "excessive_buffer_overrun_errors", "vl15_dropped",
)  # fmt: skip
_INTERFACE_ERRORS = {
    "node_network_receive_errs_total": "rx_errors",
    "node_network_transmit_errs_total": "tx_errors",
}
LAST_XID = "DCGM_FI_DEV_XID_ERRORS"
COUNTED_XIDS = ("DCGM_EXP_XID_ERRORS_COUNT", "accelerator_nvidia_xid_errors_total")
_READINGS = ("temperature_c", "clock_sm_mhz", "power_w", "power_cap_w", "utilisation_percent")
GPU_READINGS = tuple(name for name, value in _OF_A_GPU.items() if value in _READINGS)
GPU_STATES = (*_REASON_MASKS, *_REASONS)
"""Metrics whose values show why clocks are throttled at that moment."""
GPU_COUNTERS = (*(name for name, value in _OF_A_GPU.items() if value not in _READINGS), *_NVLINK)
PORT_COUNTERS = tuple(f"node_infiniband_{name}_total" for name in _PORT_ERRORS)


@dataclass
class _Part:
    """The values of several samples about one GPU or port."""

    line: TextLine
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, list[Any]] = field(default_factory=dict)

    def set(self, name: str, value: Any, line: TextLine) -> None:
        self.values[name] = value
        self.lines.setdefault(name, [line.number, line.text.strip()])


@dataclass
class _Page:
    """The parts of a page, by host and by GPU or port."""

    parts: dict[tuple[str, str | None, str], _Part] = field(default_factory=dict)

    def part(self, topic: str, line: TextLine, subject: str) -> _Part:
        return self.parts.setdefault((topic, line.host, subject), _Part(line))

    def facts(self) -> Iterator[HostFact]:
        for (topic, _, subject), part in self.parts.items():
            yield HostFact(topic, subject, part.line, {**part.values, "lines": part.lines})


@dataclass(frozen=True)
class MetricSample:
    """One value of a metric, and the line that shows it; `line.host` is the host that it is about."""

    name: str
    labels: dict[str, str]
    value: float
    line: TextLine


def read_metrics(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield the facts in a page's known metrics, Xids first."""
    known = (line for line in lines if line.text.startswith(NEEDLES))
    return sample_facts(
        MetricSample(name, labels, value, TextLine(line.number, line.text, host, line.command))
        for line in known
        for name, labels, value in _samples(line.text)
        for host in [next((labels[name] for name in _HOST_LABELS if labels.get(name) not in _NO_HOST), line.host)]
    )


def sample_facts(samples: Iterable[MetricSample]) -> Iterator[HostFact]:
    """Yield the facts in samples of known metrics, Xids first."""
    page = _Page()
    for sample in samples:
        if code := xid_of(sample.name, sample.labels, sample.value):
            times = 1 if sample.name == LAST_XID else int(sample.value)
            values = {"xid": code, "device": gpu_of(sample.labels), "times": times, **pod_of(sample.labels)}
            yield HostFact("kernel", "xid", sample.line, values)
        elif sample.value < LEAST_BLANK:
            _take(page, sample.name, sample.labels, sample.value, sample.line)
    yield from page.facts()


def _samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    """The sample in a line; empty if it is not a sample."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        found = [one for family in text_string_to_metric_families(text + "\n") for one in family.samples]
        return [(one.name, dict(one.labels), float(one.value)) for one in found if one.value == one.value]
    except (ValueError, KeyError, IndexError, TypeError, OverflowError):
        return []


def xid_of(name: str, labels: dict[str, str], value: float) -> int | None:
    """The code of an Xid in a sample; None if there is none."""
    if name == LAST_XID:
        return int(value) if 0 < value < 10_000 else None
    counted = name in COUNTED_XIDS
    told = labels.get("xid", "")
    return (
        int(told)
        if counted and 0 < value < LEAST_BLANK and told.isascii() and told.isdigit() and len(told) < 5
        else None
    )


def pod_of(labels: dict[str, str]) -> dict[str, str]:
    """The pod that uses a GPU and its namespace, as values `pod` and `namespace`; empty if the labels do not tell.

    A Prometheus server that scrapes the exporter moves the exporter's own labels to `exported_pod` and the like.
    """
    prefix = "exported_" if labels.get("exported_pod") else ""
    found = {name: labels.get(prefix + name, "")[:253] for name in ("pod", "namespace")}
    return found if all(found.values()) else {}


def gpu_of(labels: dict[str, str]) -> str:
    """The bus id of a GPU, else its index, else its UUID."""
    if labels.get("pci_bus_id"):
        return bus_id(labels["pci_bus_id"])[:40]
    return (labels.get("gpu") or labels.get("UUID") or labels.get("uuid") or "?")[:60]


def _take(page: _Page, name: str, labels: dict[str, str], value: float, line: TextLine) -> None:
    if name in _OF_A_GPU:
        part = page.part("gpu_query", line, gpu_of(labels))
        part.set(_OF_A_GPU[name], _number(value), line)
        part.values.update(pod_of(labels))
    elif name in _REASON_MASKS or name in _REASONS:
        set_ = [_REASONS[name]] if name in _REASONS and value else []
        set_ += [word for bit, word in _REASON_BITS.items() if name in _REASON_MASKS and int(value) & bit]
        if set_:
            part = page.part("gpu_query", line, gpu_of(labels))
            part.set("throttle_reasons", sorted({*part.values.get("throttle_reasons", ()), *set_}), line)
    elif name in _NVLINK:
        part = page.part("nvlink", line, f"GPU{gpu_of(labels)}")
        part.values.setdefault("links", 1)
        part.values.setdefault("inactive", [])
        errors = part.values.setdefault("errors", {})
        if value > 0:
            errors[_NVLINK[name]] = _number(value)
            part.lines.setdefault("errors", [line.number, line.text.strip()])
    elif name in _INTERFACE_ERRORS:
        _port_errors(page, _INTERFACE_ERRORS[name], labels, value, line)
    elif (counter := name.removeprefix("node_infiniband_").removesuffix("_total")) in _PORT_ERRORS:
        _port_errors(page, counter, labels, value, line)
    elif name == "XPU_TIMER_COMMON_HANG" and (rank := _small(labels.get("rank", ""))) is not None:
        hang = {"rank": rank, "overdue": value > 0}
        page.part("hang_flag", line, str(rank)).values.update(hang)


def _port_errors(page: _Page, counter: str, labels: dict[str, str], value: float, line: TextLine) -> None:
    part = page.part("port_errors", line, labels.get("device", "?")[:60])
    part.values.setdefault("port", _small(labels.get("port", "")))
    part.values["looked_at"] = part.values.get("looked_at", 0) + 1
    counters = part.values.setdefault("counters", {})
    if value > 0:
        counters[counter] = _number(value)
        part.lines.setdefault("counters", [line.number, line.text.strip()])


def _small(label: str) -> int | None:
    return int(label) if label.isascii() and label.isdigit() and len(label) < 6 else None


def _number(value: float) -> int | float:
    return int(value) if value.is_integer() else value
