"""Findings about the GPUs that a job expects: fewer than ranks, gone from the driver, held by others."""

from __future__ import annotations

from collections.abc import Iterator

from ddx_tools.machine.seen import Seen, by_host, devices_text, finding, gibibytes, of_topic
from ddx_tools.model import Finding, Severity

_MUCH_BYTES = 256 << 20
"""A context of CUDA alone takes about as much."""


def job_gpu_findings(facts: list[Seen]) -> Iterator[Finding]:
    """What NVML lists against PCI and against the ranks; only where a live look saw all of them."""
    for of_host in by_host(facts).values():
        gpus = of_topic(of_host, "gpu")
        yield from _gone(gpus, of_topic(of_host, "pci_device"), of_topic(of_host, "unavailable"))
        yield from _too_few(gpus, of_topic(of_host, "rank_process"))
        yield from _left_over(of_topic(of_host, "gpu_process"), of_topic(of_host, "job"))


def _gone(gpus: list[Seen], devices: list[Seen], unavailable: list[Seen]) -> Iterator[Finding]:
    """On the bus and not with the driver. Without NVML nothing is known; a container may have been given some only."""
    on_bus = [one for one in devices if one.values.get("nvidia") and one.values["kind"] == "gpu"]
    if not gpus or any(one.subject == "GPUs" for one in unavailable):
        return
    known = {gpu.subject for gpu in gpus}
    gone = [one for one in on_bus if one.subject not in known]
    if gone:
        names = [str(one.subject) for one in gone]
        counts = f"The PCI bus has {len(on_bus)} NVIDIA GPUs, the driver lists {len(gpus)}"
        words = f"{counts}: {devices_text(names)} is missing."
        yield finding("device.unavailable", Severity.NOTICE, gone, words, what="not_listed", devices=names[:64])


def _too_few(gpus: list[Seen], ranks: list[Seen]) -> Iterator[Finding]:
    places = [rank.values["local_rank"] for rank in ranks if rank.values.get("local_rank") is not None]
    split = any(gpu.values.get("mig") == "enabled" for gpu in gpus)
    if gpus and places and max(places) >= len(gpus) and not split:
        words = f"{max(places) + 1} local ranks, and {len(gpus)} GPUs: some have to share one, or use none."
        yield finding("device.unavailable", Severity.NOTICE, [*ranks[:4], *gpus[:4]], words, what="fewer_than_ranks")


def _left_over(processes: list[Seen], jobs: list[Seen]) -> Iterator[Finding]:
    """Memory held by processes of no job here. Pids count only where the ranks' own are among them.

    A driver outside the container lists the pids of the host.
    """
    members = {str(pid) for job in jobs for pid in job.values.get("pids", [])}
    listed = {str(process.subject) for process in processes}
    if not members & listed:
        return
    foreign = [
        process
        for process in processes
        if str(process.subject) not in members
        and (process.values.get("memory_bytes") or 0) >= _MUCH_BYTES
        and "C" in str(process.values.get("type", ""))
    ]
    if foreign:
        held = sum(process.values["memory_bytes"] for process in foreign)
        gpus = sorted({process.values["gpu"] for process in foreign})
        who = devices_text(f"{process.values['name']} (pid {process.subject})" for process in foreign)
        yield finding(
            "gpu.foreign_process",
            Severity.NOTICE,
            foreign,
            f"{who} holds {gibibytes(held)} on GPU {devices_text(map(str, gpus))} and is not of the job.",
            gpus=gpus,
            pids=sorted({int(str(process.subject)) for process in foreign})[:64],
            memory_bytes=held,
        )
