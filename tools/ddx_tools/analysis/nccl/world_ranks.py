"""The processes whose global ranks NCCL's logs tell."""

from __future__ import annotations

from typing import Any

from ddx_tools.evidence.store import Store


def world_ranks(store: Store) -> list[dict[str, Any]]:
    """The rows (host, pid, rank, nranks, nvml_device, bus_id) of `nccl_ranks` whose numbers are global ranks.

    Only the largest communicators that were not split off use those.
    """
    return store.query(
        "SELECT DISTINCT host, pid, rank, nranks, nvml_device, lower(bus_id) AS bus_id FROM nccl_ranks "
        "WHERE rank IS NOT NULL AND parent IS NULL AND nranks = (SELECT max(nranks) FROM nccl_ranks)"
    )
