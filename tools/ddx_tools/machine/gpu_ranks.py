"""Which rank computes on a GPU of a host, or is a process there, as NCCL's own log says: `rank 38 … busId 52000`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from ddx_tools.model import Finding
from ddx_tools.store import Store

_OF_A_GPU = frozenset({"gpu.throttled", "gpu.xid", "gpu.off_bus", "gpu.memory_error"})
_OF_A_PROCESS = frozenset({"host.oom_kill"})
_BUS_ID = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?P<function>\.\d)?")


def with_ranks(store: Store, findings: Iterable[Finding]) -> list[Finding]:
    """The same findings; those about GPUs or a process of one host have the ranks of these, where all are known."""
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
    """What of its host a finding is about, as `_ranks` names it."""
    if finding.code in _OF_A_GPU:
        return [_gpu(device) for device in finding.attributes.get("devices") or []]
    pid = finding.attributes.get("pid") if finding.code in _OF_A_PROCESS else None
    return [] if pid is None else [f"pid {pid}"]


def _gpu(device: str) -> str:
    """A PCI address as the number that NCCL prints (`busIdToInt64` of v2.30.7 src/misc/utils.cc), or an index as it is.

    Xids name a device without its function, which is 0.
    """
    address = _BUS_ID.fullmatch(device)
    if address is None:
        return f"GPU {device}"
    digits = re.sub(r"[:.]", "", device) + ("" if address["function"] else "0")
    return f"bus {int(digits, 16):x}"


def _ranks(store: Store) -> dict[tuple[str, str], set[int]]:
    """Ranks by host and part. Only the largest communicators that were not split off have ranks of the world."""
    rows = store.query(
        "SELECT host, pid, nvml_device, lower(bus_id) AS bus_id, rank FROM nccl_ranks WHERE host IS NOT NULL "
        "AND rank IS NOT NULL AND parent IS NULL AND nranks = (SELECT max(nranks) FROM nccl_ranks)"
    )
    ranks: dict[tuple[str, str], set[int]] = defaultdict(set)
    for row in rows:
        for kind, column in (("GPU", "nvml_device"), ("bus", "bus_id"), ("pid", "pid")):
            if row[column] is not None:
                ranks[row["host"], f"{kind} {row[column]}"].add(row["rank"])
    return dict(ranks)
