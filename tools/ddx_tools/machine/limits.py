"""Findings about limits: shared memory, locked memory, disks, the memory of the host, counters of cgroups."""

from __future__ import annotations

from collections.abc import Iterator

from ddx_tools.machine.seen import Seen, by_host, finding, gibibytes, of_topic
from ddx_tools.model import Finding, Severity

_SMALL_SHM_BYTES = 64 << 20
"""What container runtimes give by default; NCCL and data loaders of one GPU can need more."""
_FULL_PERCENT = 95
_LOW_LOCKED_BYTES = 1 << 30
"""Communicators register hundreds of megabytes. Kernels allow 64 KiB or 8 MiB by default; clusters set unlimited."""
_LOW_MEMORY_SHARE = 0.02
_PSEUDO = ("tmpfs", "devtmpfs", "udev", "squashfs", "overlay", "shm", "none", "cgroup", "efivarfs", "/dev/loop")


def limit_findings(facts: list[Seen]) -> Iterator[Finding]:
    """All findings about limits."""
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


def _is_full(disk: Seen) -> bool:
    return disk.values.get("used_percent", 0) >= _FULL_PERCENT or disk.values.get("available_bytes") == 0


def _shared_memory(readings: list[Seen], if_small: Severity) -> Iterator[Finding]:
    """The worst reading of a host: somebody may have looked before and after.

    A small one with room is enough for many jobs; one that runs, as a live look sees it, may be among them.
    """
    bad = [disk for disk in readings if _is_full(disk) or disk.values["size_bytes"] <= _SMALL_SHM_BYTES]
    if not bad:
        return
    worst = next((disk for disk in bad if _is_full(disk)), bad[0])
    size, used, free = (worst.values.get(f"{name}_bytes") for name in ("size", "used", "available"))
    full = _is_full(worst)
    words = f"/dev/shm has {gibibytes(size or 0)}"
    words += f", of which {gibibytes(free or 0)} is free." if full else ", the default of container runtimes."
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


def _disk(disk: Seen) -> Iterator[Finding]:
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


def _locked_memory(limits: list[Seen]) -> Iterator[Finding]:
    """The lowest of a host: the limit of a shell and that of a job can differ."""
    low = [limit for limit in limits if limit.values.get("limit_bytes", _LOW_LOCKED_BYTES) < _LOW_LOCKED_BYTES]
    if low:
        least = min(limit.values["limit_bytes"] for limit in low)
        words = f"A process may lock {gibibytes(least)} of memory: RDMA needs far more, usually unlimited."
        yield finding("limits.locked_memory", Severity.NOTICE, low, words, limit_bytes=least)


def _host_memory(memory: Seen) -> Iterator[Finding]:
    total, free = memory.values.get("total_bytes"), memory.values.get("available_bytes")
    if total and free is not None and free < _LOW_MEMORY_SHARE * total:
        words = f"The host has {gibibytes(free)} of {gibibytes(total)} memory left."
        yield finding("limits.resource", Severity.WARNING, [memory], words, what="host_memory", available_bytes=free)


def _cgroup(events: Seen) -> Iterator[Finding]:
    kills = events.values.get("oom_kill", 0)
    if kills and not events.values.get("dated_by_log"):
        words = (
            f"The cgroup counts {kills} {'process' if kills == 1 else 'processes'} killed for memory since it was made."
        )
        yield finding(
            "host.oom_kill", Severity.WARNING, [events], words, cgroup=events.subject, limit="cgroup", kills=kills
        )
