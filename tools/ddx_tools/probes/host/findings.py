"""All findings about machines."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ddx_tools.analysis.host_facts.host_fact import (
    HostFactRow,
    by_host,
    by_place,
    devices_text,
    finding,
    gibibytes,
    of_topic,
    read_facts,
)
from ddx_tools.analysis.host_facts.sockets import socket_findings, unanswered_findings
from ddx_tools.analysis.nccl.ring_flow import ring_flow_findings
from ddx_tools.analysis.nccl.world_ranks import world_ranks
from ddx_tools.analysis.ranks.good_ends import exit_lines, is_completed, own_jobs
from ddx_tools.analysis.ranks.job_hosts import hosts_of_folders, listed_hosts
from ddx_tools.analysis.ranks.job_time import job_time
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.model.grouping import gathered
from ddx_tools.probes.host.compare import comparison_findings
from ddx_tools.probes.host.container import container_findings
from ddx_tools.probes.host.cut_pairs import cut_pair_findings
from ddx_tools.probes.host.fabric import fabric_findings
from ddx_tools.probes.host.gpu_activity import activity_findings
from ddx_tools.probes.host.gpus import gpu_findings
from ddx_tools.probes.host.hang_flags import hang_flag_findings
from ddx_tools.probes.host.health_checks import health_check_findings
from ddx_tools.probes.host.held_processes import held_process_findings
from ddx_tools.probes.host.interface_choice import interface_findings
from ddx_tools.probes.host.kernel import (
    GoodEnd,
    kernel_findings,
    mark_other_hosts,
    mark_other_jobs,
    mark_other_processes,
    mark_others,
)
from ddx_tools.probes.host.metrics_findings import metrics_findings
from ddx_tools.probes.host.packet_loss import loss_findings
from ddx_tools.probes.host.scheduler import of_own_workloads, scheduler_findings


def machine_findings(store: Store) -> list[Finding]:
    """Return the findings about the rows of `host_facts`."""
    facts = with_hosts_of_names(store, read_facts(store))
    left_out = {row["source"] for row in store.query("SELECT source FROM logs WHERE left_out")}
    ran = store.derived(job_time)
    mark_others(facts, ran, left_out, listed_hosts(store), _reported_ends(store))
    mark_other_hosts(facts, hosts_of_folders(store))
    mark_other_processes(facts, _pids_of_all_ranks(store))
    over = GoodEnd(by_log=bool(store.derived(exit_lines)), by_scheduler=is_completed(store))
    mark_other_jobs(facts, store.derived(own_jobs), ran, over)
    logs = store.query("SELECT path FROM logs WHERE NOT coalesce(left_out, false)")
    facts = of_own_workloads(facts, [posixpath.basename(row["path"]) for row in logs if row["path"]])
    return [
        *held_process_findings(store, facts),
        *with_ranks(store, findings_of_facts(facts)),
        *ring_flow_findings(store, facts),
    ]


def with_hosts_of_names(store: Store, facts: Iterable[HostFactRow]) -> list[HostFactRow]:
    """Return the facts; those without a host get the one of the job that their file is named for: `dmesg.gpu-04`."""
    rows = store.query("SELECT DISTINCT host FROM nccl_ranks UNION SELECT DISTINCT host FROM ranks")
    known = sorted({row["host"] for row in rows if row["host"]}, key=len)
    facts = list(facts)
    hosts: dict[str, str | None] = {}
    for path in {fact.evidence.source for fact in facts if fact.host is None and known}:
        name = path.rpartition("/")[2]
        named = [one for one in known if re.search(rf"(?<![A-Za-z0-9]){re.escape(one)}(?![A-Za-z0-9])", name)]
        # The longest may contain others: `gpu-0-1` of `gpu-0`.
        hosts[path] = named[-1] if named and all(one in named[-1] for one in named) else None
    return [replace(fact, host=fact.host or hosts.get(fact.evidence.source)) for fact in facts]


def _reported_ends(store: Store) -> dict[int, bool]:
    """The process ids whose end a launcher reports, and whether any such report is of the current attempt."""
    rows = store.query(
        "SELECT pid, bool_or(NOT coalesce(superseded, false)) AS now FROM log_events "
        "WHERE kind IN ('exit', 'failure_summary') AND pid IS NOT NULL GROUP BY pid"
    )
    return {row["pid"]: row["now"] for row in rows}


def _pids_of_all_ranks(store: Store) -> dict[str, set[int]]:
    """The process ids of the job's ranks by host, according to NCCL; empty unless it names all of them."""
    rows = [row for row in world_ranks(store) if row["host"] is not None and row["pid"] is not None]
    if not rows or len({row["rank"] for row in rows}) < rows[0]["nranks"]:
        return {}
    return {host: set(pids) for host, pids in gathered((row["host"], row["pid"]) for row in rows).items()}


def findings_of_facts(facts: list[HostFactRow]) -> list[Finding]:
    """Return the findings about the facts of any number of machines."""
    return [
        *kernel_findings(facts),
        *gpu_findings(facts),
        *activity_findings(facts),
        *health_check_findings(facts),
        *hang_flag_findings(facts),
        *job_gpu_findings(facts),
        *limit_findings(facts),
        *container_findings(facts),
        *fabric_findings(facts),
        *interface_findings(facts),
        *loss_findings(facts),
        *socket_findings(facts),
        *unanswered_findings(facts),
        *cut_pair_findings(facts),
        *link_width_findings(facts),
        *package_findings(facts),
        *scheduler_findings(facts),
        *metrics_findings(facts),
        *comparison_findings(facts),
    ]


# --- findings about versions on a machine that do not fit each other


def package_findings(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Yield a finding if the fabric manager's version is not the driver's: it rejects any other driver."""
    for said in by_place(of_topic(facts, "package")):
        drivers = {one.values["version"]: one for one in said if one.subject == "driver"}
        managers = {one.values["version"]: one for one in said if one.subject == "fabric_manager"}
        if not drivers or not managers or set(drivers) & set(managers):
            continue
        driver, manager = list(drivers)[-1], list(managers)[-1]
        yield finding(
            "startup.versions_differ",
            Severity.FAILURE,
            [managers[manager], drivers[driver]],
            f"The fabric manager has version {manager}, but the driver has {driver}; it only starts with its own "
            "version.",
            what="fabric_manager",
            versions={"fabric_manager": manager, "driver": driver},
        )


# --- findings about PCIe links that run with fewer lanes than possible


def link_width_findings(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Yield findings about accelerators and network devices on narrow links. Link speed is ignored: idle links slow
    down to save power."""
    for links in by_host(of_topic(facts, "pcie_link")).values():
        last = {link.subject: link for link in links}
        narrow = [link for link in last.values() if link.values["narrowed"]]
        if not narrow:
            continue
        widths = sorted({link.values["width"] for link in narrow})
        whole = max((link.values["width"] for link in last.values() if link not in narrow), default=None)
        possible = max((link.values["possible"] for link in narrow if "possible" in link.values), default=whole)
        names = devices_text(str(link.subject) for link in narrow)
        among = f" ({len(narrow)} of {len(last)} devices)" if len(last) > 1 else ""
        yield finding(
            "host.pcie_link_narrow",
            Severity.WARNING,
            narrow,
            f"The PCIe link of {names} runs with {widths[0]} lanes"
            + (f" instead of {possible}" if possible else ", fewer than possible")
            + f"{among}.",
            devices=[str(link.subject) for link in narrow][:64],
            kinds=sorted({link.values["kind"] for link in narrow if "kind" in link.values}),
            width=widths[0],
            possible=possible,
        )


# --- findings about the GPUs that a job expects: fewer than ranks, missing from the driver, used by others

_MUCH_BYTES = 256 << 20
"""A CUDA context by itself takes about as much."""


def job_gpu_findings(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Yield findings that compare NVML's GPUs with PCI and with the ranks; only for a live capture of all three."""
    for of_host in by_host(facts).values():
        gpus = of_topic(of_host, "gpu")
        yield from _gone(gpus, of_topic(of_host, "pci_device"), of_topic(of_host, "unavailable"))
        yield from _too_few(gpus, of_topic(of_host, "rank_process"))
        yield from _left_over(of_topic(of_host, "gpu_process"), of_topic(of_host, "job"))


def _gone(gpus: list[HostFactRow], devices: list[HostFactRow], unavailable: list[HostFactRow]) -> Iterator[Finding]:
    """GPUs on the bus but not in the driver. Without NVML nothing is known; a container may get only some GPUs."""
    on_bus = [one for one in devices if one.values.get("nvidia") and one.values["kind"] == "gpu"]
    if not gpus or any(one.subject == "GPUs" for one in unavailable):
        return
    known = {gpu.subject for gpu in gpus}
    gone = [one for one in on_bus if one.subject not in known]
    if gone:
        names = [str(one.subject) for one in gone]
        counts = f"The PCI bus has {len(on_bus)} NVIDIA GPUs, but the driver lists {len(gpus)}"
        words = f"{counts}: {devices_text(names)} is missing."
        yield finding("device.unavailable", Severity.NOTICE, gone, words, what="not_listed", devices=names[:64])


def _too_few(gpus: list[HostFactRow], ranks: list[HostFactRow]) -> Iterator[Finding]:
    places = [rank.values["local_rank"] for rank in ranks if rank.values.get("local_rank") is not None]
    split = any(gpu.values.get("mig") == "enabled" for gpu in gpus)
    if gpus and places and max(places) >= len(gpus) and not split:
        words = (
            f"There are {max(places) + 1} local ranks but {len(gpus)} GPUs: some ranks must share a GPU, or use none."
        )
        yield finding("device.unavailable", Severity.NOTICE, [*ranks[:4], *gpus[:4]], words, what="fewer_than_ranks")


def _left_over(processes: list[HostFactRow], jobs: list[HostFactRow]) -> Iterator[Finding]:
    """GPU memory held by processes outside any job here. Pids count only if the ranks' own are among them.

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
            f"{who} holds {gibibytes(held)} on GPU {devices_text(map(str, gpus))} but is not part of the job.",
            gpus=gpus,
            pids=sorted({int(str(process.subject)) for process in foreign})[:64],
            memory_bytes=held,
        )


# --- findings about limits: shared memory, locked memory, disks, host memory, cgroup counters

_SMALL_SHM_BYTES = 64 << 20
"""The default of container runtimes; NCCL and data loaders can need more even for one GPU."""
_FULL_PERCENT = 95
_LOW_LOCKED_BYTES = 1 << 30
"""Communicators register hundreds of megabytes. Kernels allow 64 KiB or 8 MiB by default; clusters set unlimited."""
_LOW_MEMORY_SHARE = 0.02
_PSEUDO = ("tmpfs", "devtmpfs", "udev", "squashfs", "overlay", "shm", "none", "cgroup", "efivarfs", "/dev/loop")


def limit_findings(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Yield all findings about limits."""
    running = {one.host for one in of_topic(facts, "job")}
    shared = [disk for disk in of_topic(facts, "disk") if disk.subject == "/dev/shm"]
    for host, of_host in by_host(shared).items():
        yield from _shared_memory(of_host, Severity.NOTICE if host in running else Severity.WARNING)
    for disk in of_topic(facts, "disk", "inodes"):
        if disk.subject != "/dev/shm":
            yield from _disk(disk)
    without_rdma = {one.host for one in of_topic(facts, "unavailable") if one.subject == "rdma"}
    for host, limits in by_host(of_topic(facts, "limit")).items():
        if host not in without_rdma:
            yield from _locked_memory([limit for limit in limits if limit.subject == "locked_memory"])
    for memory in of_topic(facts, "memory"):
        yield from _host_memory(memory)
    for events in of_topic(facts, "cgroup"):
        yield from _cgroup(events)


def _is_full(disk: HostFactRow) -> bool:
    return disk.values.get("used_percent", 0) >= _FULL_PERCENT or disk.values.get("available_bytes") == 0


def _shared_memory(readings: list[HostFactRow], if_small: Severity) -> Iterator[Finding]:
    """The worst of a host's readings: there may be one from before the failure and one from after it.

    A small /dev/shm with free space is enough for many jobs, perhaps also for one that a live capture sees running.
    """
    bad = [disk for disk in readings if _is_full(disk) or disk.values["size_bytes"] <= _SMALL_SHM_BYTES]
    if not bad:
        return
    worst = next((disk for disk in bad if _is_full(disk)), bad[0])
    size, used, free = (worst.values.get(f"{name}_bytes") for name in ("size", "used", "available"))
    full = _is_full(worst)
    words = f"/dev/shm has {gibibytes(size or 0)}"
    words += f", of which {gibibytes(free or 0)} are free." if full else ", the default of container runtimes."
    yield finding(
        "limits.shm_full",
        Severity.WARNING if full else if_small,
        [worst, *(disk for disk in bad if disk is not worst)],
        words,
        size_bytes=size,
        used_bytes=used,
        available_bytes=free,
        what="unknown",
        certain=True,
        full=full,
        small=size is not None and size <= _SMALL_SHM_BYTES,
    )


def _disk(disk: HostFactRow) -> Iterator[Finding]:
    kind = "inodes" if disk.topic == "inodes" else "bytes"
    device, mount = str(disk.values.get("device", "")), str(disk.subject)
    free = disk.values.get(f"available_{kind}")
    full = disk.values.get("used_percent") == 100 or free == 0
    if not full or mount.startswith(("/snap", "/sys", "/proc", "/dev", "/boot")) or not disk.values.get(f"size_{kind}"):
        return
    if device.startswith(_PSEUDO) and mount not in ("/", "/tmp", "/run"):
        return
    what = "inodes" if kind == "inodes" else "disk"
    words = f"{mount} is full: no {'inodes' if what == 'inodes' else 'space'} left."
    yield finding("limits.resource", Severity.WARNING, [disk], words, what=what, place=mount)


def _locked_memory(limits: list[HostFactRow]) -> Iterator[Finding]:
    """The lowest limit on a host: those of a shell and of a job can differ."""
    low = [limit for limit in limits if limit.values.get("limit_bytes", _LOW_LOCKED_BYTES) < _LOW_LOCKED_BYTES]
    if low:
        least = min(limit.values["limit_bytes"] for limit in low)
        words = f"A process may lock only {gibibytes(least)} of memory: RDMA needs far more, usually unlimited."
        yield finding("limits.locked_memory", Severity.NOTICE, low, words, limit_bytes=least)


def _host_memory(memory: HostFactRow) -> Iterator[Finding]:
    total, free = memory.values.get("total_bytes"), memory.values.get("available_bytes")
    if total and free is not None and free < _LOW_MEMORY_SHARE * total:
        words = f"The host has {gibibytes(free)} of {gibibytes(total)} memory left."
        yield finding("limits.resource", Severity.WARNING, [memory], words, what="host_memory", available_bytes=free)


def _cgroup(events: HostFactRow) -> Iterator[Finding]:
    kills = events.values.get("oom_kill", 0)
    if kills and not events.values.get("dated_by_log"):
        words = (
            f"The cgroup counts {kills} {'process' if kills == 1 else 'processes'} killed for memory since its "
            "creation."
        )
        yield finding(
            "host.oom_kill", Severity.WARNING, [events], words, cgroup=events.subject, limit="cgroup", kills=kills
        )


# --- the rank on a GPU or of a process of a host, according to NCCL's log: `rank 38 … busId 52000`

_OF_A_GPU = frozenset(
    {"gpu.throttled", "gpu.activity_differs", "gpu.driver_error", "gpu.xid", "gpu.off_bus", "gpu.memory_error"}
)
_OF_A_PROCESS = frozenset({"host.oom_kill"})
_BUS_ID = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?P<function>\.\d)?")


def with_ranks(store: Store, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, with ranks added to those about GPUs or a process of one host, if all ranks are known."""
    found = list(findings)
    known: dict[tuple[str, str], set[int]] | None = None
    for each in found:
        parts = _parts(each)
        if each.ranks or not parts or len(each.hosts) != 1:
            continue
        known = _ranks(store) if known is None else known
        theirs = [known.get((each.hosts[0], part), set()) for part in parts]
        if all(len(ranks) == 1 for ranks in theirs):
            each.ranks = sorted(set().union(*theirs))
    return found


def _parts(finding: Finding) -> list[str]:
    """The parts of a host that a finding is about, named as in `_ranks`."""
    if finding.code in _OF_A_GPU:
        return [_gpu(device) for device in finding.attributes.get("devices") or []]
    pid = finding.attributes.get("pid") if finding.code in _OF_A_PROCESS else None
    return [] if pid is None else [f"pid {pid}"]


def _gpu(device: str) -> str:
    """A PCI address as the number that NCCL prints (`busIdToInt64` of v2.30.7 src/misc/utils.cc), or an index
    unchanged.

    Xid lines name a device without its function, which is 0.
    """
    address = _BUS_ID.fullmatch(device)
    if address is None:
        return f"GPU {device}"
    digits = re.sub(r"[:.]", "", device) + ("" if address["function"] else "0")
    return f"bus {int(digits, 16):x}"


def _ranks(store: Store) -> dict[tuple[str, str], set[int]]:
    """Ranks by host and part, according to NCCL."""
    ranks: dict[tuple[str, str], set[int]] = defaultdict(set)
    for row in (row for row in world_ranks(store) if row["host"] is not None):
        for kind, column in (("GPU", "nvml_device"), ("bus", "bus_id"), ("pid", "pid")):
            if row[column] is not None:
                ranks[row["host"], f"{kind} {row[column]}"].add(row["rank"])
    return dict(ranks)
