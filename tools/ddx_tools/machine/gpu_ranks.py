"""Which rank computes on which GPU of a host, as NCCL's own log says: `comm 0x… rank 38 nranks 64 … nvmlDev 6`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ddx_tools.model import Finding

if TYPE_CHECKING:
    from ddx_tools.store import Store


def with_ranks(store: Store, findings: Iterable[Finding]) -> list[Finding]:
    """The same findings; those that name GPUs of a host by their index have the ranks of these, where all are known."""
    found = list(findings)
    known: dict[tuple[str, str], set[int]] | None = None
    for each in found:
        devices = each.attributes.get("devices")
        if each.code != "gpu.throttled" or each.ranks or not devices or len(each.hosts) != 1:
            continue
        known = _ranks(store) if known is None else known
        theirs = [known.get((each.hosts[0], device), set()) for device in devices]
        if all(len(ranks) == 1 for ranks in theirs):
            each.ranks = sorted(set().union(*theirs))
    return found


def _ranks(store: Store) -> dict[tuple[str, str], set[int]]:
    """Ranks by host and NVML index. Only the largest communicators that were not split off have ranks of the world."""
    rows = store.query(
        "SELECT host, nvml_device, rank FROM nccl_ranks WHERE host IS NOT NULL AND nvml_device IS NOT NULL "
        "AND rank IS NOT NULL AND parent IS NULL AND nranks = (SELECT max(nranks) FROM nccl_ranks)"
    )
    ranks: dict[tuple[str, str], set[int]] = defaultdict(set)
    for row in rows:
        ranks[row["host"], str(row["nvml_device"])].add(row["rank"])
    return dict(ranks)
