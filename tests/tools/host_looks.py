"""What a live look brings home, constructed: answers of a machine that is not at hand, as `host` keeps them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ddx_tools.analysis.host_facts.host_fact import seen
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding
from ddx_tools.probes.host.capture import ANSWER, INTERFACES, NAMES, NVML, PROCESSES, UNAVAILABLE
from ddx_tools.probes.host.findings import findings_of_facts
from ddx_tools.probes.host.probe import PROBE
from ddx_tools.sources.raw import Raw, RawItem, merge_rows


def text(answer: str) -> RawItem:
    """What a command printed, or what a file of the kernel holds."""
    return RawItem(ANSWER, answer.encode(), f"raw/{abs(hash(answer)):x}.txt")


def unavailable(what: str) -> RawItem:
    return RawItem(UNAVAILABLE, b"", "", {"what": what, "why": "not there"})


def processes(snapshot: dict[str, Any], *pids: int) -> RawItem:
    moment = {"now": 2_000.0, "boot_time": 1_000.0, "uid": 0}
    return RawItem(PROCESSES, json.dumps(moment | snapshot).encode(), "raw/processes.json", {"pids": list(pids)})


def name(host: str, *addresses: str) -> RawItem:
    """What getent prints (glibc 2.36)."""
    lines = [f"{address:<15} {kind} {host}" for address in addresses for kind in ("STREAM", "DGRAM ", "RAW   ")]
    return RawItem(NAMES, "\n".join(lines).encode(), "raw/getent.txt", {"name": host})


def interface(name: str, *ipv4: str, **facts: Any) -> dict[str, Any]:
    counters = ("received", "sent", "receive_errors", "send_errors", "receive_drops", "send_drops")
    known: dict[str, Any] = {"mtu": 1500, "up": True, "running": True, "loopback": name == "lo", "ipv6": []}
    known["speed_mbit_per_s"] = None
    return {"name": name, "ipv4": list(ipv4), **known, **dict.fromkeys(counters, 0), **facts}


def interfaces(*rows: dict[str, Any]) -> RawItem:
    lines = ",\n".join(json.dumps(row) for row in rows)
    return RawItem(INTERFACES, f'{{"interfaces": [\n{lines}\n]}}\n'.encode(), "raw/interfaces.json")


def gpu(index: int, **facts: Any) -> dict[str, Any]:
    """A healthy H100 as `ddx_tools.sources.hosts.nvml` writes it."""
    known = {
        "index": index, "bus": f"00000000:{0x18 + index:02X}:00.0", "name": "NVIDIA H100 80GB HBM3", "lost": False,
        "memory_used_bytes": 1 << 30, "memory_total_bytes": 80 << 30, "temperature_c": 35, "power_w": 90.0,
        "clock_sm_mhz": 1980, "clock_sm_most_mhz": 1980, "throttle_reasons": [], "persistence": 1, "mig": "disabled",
        "ecc_volatile_uncorrectable": 0, "ecc_volatile_correctable": 0, "ecc_aggregate_uncorrectable": 0,
        "rows_remapped_uncorrectable": 0, "remap_pending": False, "remap_failed": False,
        "pcie_width": 16, "pcie_width_most": 16, "fabric_state": "Completed", "fabric_status": "Success",
        "nvlinks": [{"link": link, "active": True, "errors": {}} for link in range(18)], "peers": [], "processes": [],
    }  # fmt: skip
    return known | facts


def nvml(*gpus: dict[str, Any], **head: Any) -> RawItem:
    said = {"driver": "550.54.15", "cuda": "12.4", "nvml": "12.550.54.15", "error": None} | head
    lines = ",\n".join(json.dumps(one) for one in gpus)
    return RawItem(NVML, f'{json.dumps(said)[:-1]}, "gpus": [\n{lines}\n]}}\n'.encode(), "raw/nvml.json")


def rows_of(*looks: tuple[str, Sequence[RawItem]]) -> list[dict[str, Any]]:
    """Rows of `host_facts` of one look at each host."""
    return merge_rows(dict(PROBE.parse(Raw(host, list(items)))) for host, items in looks)["host_facts"]


def findings_of(*items: RawItem, host: str = "node-1") -> list[Finding]:
    return findings_of_facts([seen(row) for row in rows_of((host, items))])


def findings_of_hosts(**looks: Sequence[RawItem]) -> list[Finding]:
    return findings_of_facts([seen(row) for row in rows_of(*looks.items())])


def table_of(*items: RawItem) -> list[dict[str, Any]]:
    with Store() as store:
        store.insert({"host_facts": rows_of(("node-1", items))})
        assert callable(PROBE.table)
        return PROBE.table(store)
