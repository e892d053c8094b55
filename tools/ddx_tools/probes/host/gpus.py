"""Findings about the output of nvidia-smi: memory errors, throttled clocks, links, fabric, topology, processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ddx_tools.analysis.host_facts.host_fact import HostFactRow, by_host, devices_text, finding, gibibytes, of_topic
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.model.grouping import gathered

_HARD_REASONS = {"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"}
_UNAVAILABLE = {
    "not_found": "a GPU that should be there was not found",
    "none_seen": "no GPU was found",
    "driver_not_running": "the NVIDIA driver does not answer",
    "nvml": "the NVIDIA management library cannot be used",
}
_MUCH_BYTES = 1 << 30


def gpu_findings(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Yield all findings about GPUs, except those from the kernel log."""
    for of_host in by_host(of_topic(facts, "gpu", "gpu_query")).values():
        yield from _memory_errors(of_host)
        yield from _throttled(of_host)
        yield from _fabric(of_host)
        yield from _unreadable(of_host)
    for trouble in of_topic(facts, "gpu_trouble"):
        if what := _UNAVAILABLE.get(str(trouble.subject)):
            devices = [trouble.values["device"]] if "device" in trouble.values else None
            yield finding(
                "device.unavailable", Severity.WARNING, [trouble], f"{what}.", what=trouble.subject, devices=devices
            )
    yield from _links(of_topic(facts, "nvlink"))
    yield from _services(of_topic(facts, "service"))
    for of_host in by_host(of_topic(facts, "gpu_link", "gpu_p2p")).values():
        yield from _topology(of_host)
    for of_host in by_host(of_topic(facts, "gpu", "gpu_process")).values():
        yield from _processes(of_host)


def _devices(gpus: list[HostFactRow]) -> list[str]:
    return sorted({str(gpu.subject) for gpu in gpus})


# --- memory


_MEMORY: tuple[tuple[str, tuple[str, ...], Severity, str], ...] = (
    ("remap_failed", ("remap_failed",), Severity.FAILURE, "a memory row could not be remapped"),
    (
        "uncorrectable",
        ("ecc_volatile_uncorrectable", "ecc_uncorrectable"),
        Severity.FAILURE,
        "uncorrectable memory errors since the driver was loaded",
    ),
    ("memory_test", ("memory_test_failed",), Severity.FAILURE, "a test of its memory found errors"),
    (
        "remap_pending",
        ("remap_pending", "retire_pending"),
        Severity.WARNING,
        "a memory remapping waits for a GPU reset",
    ),
    (
        "past_uncorrectable",
        ("ecc_aggregate_uncorrectable", "rows_remapped_uncorrectable", "pages_retired_uncorrectable"),
        Severity.NOTICE,
        "uncorrectable memory errors in its lifetime, but none since the driver was loaded",
    ),
    ("correctable", ("ecc_volatile_correctable",), Severity.INFO, "correctable memory errors"),
)


def _memory_errors(gpus: list[HostFactRow]) -> Iterator[Finding]:
    """One finding for each kind of memory error, about the GPUs that have nothing worse."""
    told: set[str | None] = set()
    for kind, names, severity, words in _MEMORY:
        hit = [gpu for gpu in gpus if gpu.subject not in told and any(gpu.values.get(name) for name in names)]
        if not hit:
            continue
        if severity is not Severity.INFO:
            told |= {gpu.subject for gpu in hit}
        devices = _devices(hit)
        counts = [int(gpu.values[name]) for gpu in hit for name in names if gpu.values.get(name)]
        evidence = [place for gpu in hit for place in gpu.evidence_of(*(n for n in names if gpu.values.get(n)))]
        text = f"GPU {devices_text(devices)}: {words}."
        yield finding("gpu.memory_error", severity, hit, text, evidence, devices=devices, kind=kind, count=max(counts))


# --- clocks


def _throttled(gpus: list[HostFactRow]) -> Iterator[Finding]:
    held = [gpu for gpu in gpus if gpu.values.get("throttle_reasons")]
    hard = [gpu for gpu in held if _HARD_REASONS & set(gpu.values["throttle_reasons"])]
    soft = [gpu for gpu in held if gpu not in hard]
    for group, severity in ((hard, Severity.WARNING), (soft, Severity.INFO)):
        if not group:
            continue
        reasons = sorted({reason for gpu in group for reason in gpu.values["throttle_reasons"]})
        devices = _devices(group)
        yield finding(
            "gpu.throttled",
            severity,
            group,
            f"GPU {devices_text(devices)}: clocks are throttled ({', '.join(reasons)}).",
            [place for gpu in group for place in gpu.evidence_of("throttle_reasons")],
            devices=devices,
            reasons=reasons,
            hard=bool(_HARD_REASONS & set(reasons)),
            clocks_mhz=_by_device(group, "clock_sm_mhz"),
            temperature_c=_by_device(group, "temperature_c"),
            gpus=len({gpu.subject for gpu in gpus}),
        )


def _by_device(gpus: list[HostFactRow], name: str) -> dict[str, Any] | None:
    return {str(gpu.subject): gpu.values[name] for gpu in gpus if name in gpu.values} or None


def _unreadable(gpus: list[HostFactRow]) -> Iterator[Finding]:
    hit = [gpu for gpu in gpus if gpu.values.get("unreadable")]
    if hit:
        devices = _devices(hit)
        text = f"nvidia-smi shows errors instead of values for GPU {devices_text(devices)}."
        yield finding("device.unavailable", Severity.WARNING, hit, text, what="unreadable", devices=devices)
    closed = [gpu for gpu in gpus if gpu.values.get("compute_mode") == "Prohibited"]
    if closed:
        devices = _devices(closed)
        words = f"GPU {devices_text(devices)} is in compute mode Prohibited: no program can use it."
        yield finding("device.unavailable", Severity.WARNING, closed, words, what="prohibited", devices=devices)


# --- links


def _fabric(gpus: list[HostFactRow]) -> Iterator[Finding]:
    bad = [
        gpu
        for gpu in gpus
        if gpu.values.get("fabric_state", "N/A") not in ("N/A", "Completed")
        or gpu.values.get("fabric_status", "N/A") not in ("N/A", "Success")
    ]
    if bad:
        states = sorted({f"{g.values.get('fabric_state')}, {g.values.get('fabric_status', 'N/A')}" for g in bad})
        words = f"GPU {devices_text(_devices(bad))} did not join the NVLink fabric ({'; '.join(states)})."
        yield _nvlink(bad, words, Severity.WARNING, "fabric", _devices(bad), "fabric_state", "fabric_status")


def _nvlink(
    gpus: list[HostFactRow], words: str, severity: Severity, what: str, devices: list[str], *values: str
) -> Finding:
    places = [place for gpu in gpus for place in gpu.evidence_of(*values)]
    return finding("gpu.nvlink_error", severity, gpus, words, places, devices=devices, what=what)


def _links(links: list[HostFactRow]) -> Iterator[Finding]:
    for of_host in by_host(links).values():
        counted = [gpu for gpu in of_host if gpu.values["errors"]]
        if counted:
            worst = Counter({name: count for gpu in counted for name, count in gpu.values["errors"].items()})
            named = ", ".join(f"{name} {count}" for name, count in worst.most_common(3))
            devices = [str(gpu.subject) for gpu in counted]
            words = f"{devices_text(devices)}: NVLink error counters are not zero ({named})."
            yield _nvlink(counted, words, Severity.NOTICE, "counters", devices, "errors")
        whole = {gpu.values["links"] - len(gpu.values["inactive"]) for gpu in of_host}
        odd = [gpu for gpu in of_host if gpu.values["inactive"] and len(whole) > 1]
        # Links that are inactive on all GPUs are not wired on this board.
        least = [gpu for gpu in odd if gpu.values["links"] - len(gpu.values["inactive"]) < max(whole)]
        if least:
            devices = [str(gpu.subject) for gpu in least]
            words = f"{devices_text(devices)}: some NVLinks are inactive that are active on the host's other GPUs."
            yield _nvlink(least, words, Severity.WARNING, "inactive", devices, "inactive")


def _services(services: list[HostFactRow]) -> Iterator[Finding]:
    for service in services:
        if service.values["state"] != "active":
            words = f"The service {service.subject} is {service.values['state']}: GPUs behind an NVSwitch need it."
            yield finding("gpu.nvlink_error", Severity.WARNING, [service], words, what="fabric_manager")


# --- topology


_ORDER = ("NV", "PIX", "PXB", "PXN", "PHB", "NODE", "SYS")


def _topology(links: list[HostFactRow]) -> Iterator[Finding]:
    pairs = {str(fact.subject): str(fact.values["link"]) for fact in links if fact.topic == "gpu_link"}
    peers = Counter(str(fact.values["link"]) for fact in links if fact.topic == "gpu_p2p")
    if not pairs and not peers:
        return
    names = {name for fact in links for name in str(fact.subject).split("-") if name.startswith("GPU")}
    by_nvlink = [pair for pair, link in pairs.items() if link.startswith("NV")]
    worst = max((link.rstrip("0123456789") for link in pairs.values()), key=_ORDER.index, default=None)
    refused = sum(count for cell, count in peers.items() if cell != "OK")
    words = f"{len(names)} GPUs"
    if pairs:
        some = f"in {len(by_nvlink)} of {len(pairs)} pairs"
        words += f": NVLink {'between all' if len(by_nvlink) == len(pairs) else some}, the longest path is {worst}"
    if peers:
        words += f"; peer access is {f'refused in {refused} of {sum(peers.values())} pairs' if refused else 'possible'}"
    yield finding(
        "gpu.topology",
        Severity.NOTICE if refused else Severity.INFO,
        links,
        f"{words}.",
        list({(fact.evidence.source, fact.evidence.line): fact.evidence for fact in links}.values()),
        gpus=len(names),
        nvlink=len(by_nvlink) == len(pairs) if pairs else None,
        worst=worst,
        peer_access=not refused if peers else None,
    )


# --- processes


def _processes(facts: list[HostFactRow]) -> Iterator[Finding]:
    """GPUs with more than one program, and GPU memory in use without a listed program."""
    processes = [fact for fact in of_topic(facts, "gpu_process") if "C" in str(fact.values.get("type", ""))]
    by_gpu = gathered((process.values["gpu"], process) for process in processes)
    homes = Counter(process.subject for process in processes)
    crowded = {gpu: on_it for gpu, on_it in by_gpu.items() if len({process.subject for process in on_it}) > 1}
    if crowded:
        shown = [process for on_it in crowded.values() for process in on_it]
        elsewhere = sorted({str(process.subject) for process in shown if homes[process.subject] > 1})
        words = "; ".join(f"GPU {gpu} has {len(on_it)}" for gpu, on_it in sorted(crowded.items())[:8])
        yield finding(
            "gpu.several_processes",
            Severity.NOTICE,
            shown,
            f"Several programs hold memory on one GPU: {words}.",
            gpus=sorted(crowded),
            pids=sorted({int(str(process.subject)) for process in shown})[:64],
            processes=sorted({str(process.values["name"]) for process in shown})[:16],
            on_other_gpus=[int(pid) for pid in elsewhere][:64],
        )
    yield from _unlisted(facts, by_gpu)


def _unlisted(facts: list[HostFactRow], by_gpu: dict[int, list[HostFactRow]]) -> Iterator[Finding]:
    """Memory in use without a listed program, if other GPUs list theirs: inside a container, nvidia-smi lists none."""
    held = [
        gpu
        for gpu in of_topic(facts, "gpu")
        if gpu.values.get("memory_used_bytes", 0) > _MUCH_BYTES
        and gpu.values["index"] not in by_gpu
        and not gpu.values.get("unreadable")
    ]
    if held and by_gpu:
        devices = _devices(held)
        used = max(gpu.values["memory_used_bytes"] for gpu in held)
        words = f"GPU {devices_text(devices)} has up to {gibibytes(used)} in use, but no process is listed on it."
        yield finding("gpu.memory_unaccounted", Severity.NOTICE, held, words, devices=devices, used_bytes=used)
