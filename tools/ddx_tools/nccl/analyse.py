"""All that the logs of NCCL say, as findings."""

from __future__ import annotations

from ddx_tools.model import Finding
from ddx_tools.nccl.operation_findings import operation_findings, read_enqueued
from ddx_tools.nccl.p2p_findings import p2p_findings
from ddx_tools.nccl.raised_versions import raised_versions
from ddx_tools.nccl.ras_findings import ras_findings
from ddx_tools.nccl.setting_findings import setting_findings
from ddx_tools.nccl.startup_findings import startup_findings
from ddx_tools.nccl.transport_findings import transport_findings
from ddx_tools.nccl.view import read_case
from ddx_tools.nccl.warning_findings import warning_findings
from ddx_tools.store import Store


def nccl_findings(store: Store) -> list[Finding]:
    """Findings of the tables whose names begin with `nccl_`."""
    case = read_case(store)
    enqueued = read_enqueued(case, store)
    with_operations = {
        (one.communicator.id, row["host"], row["pid"]) for one in enqueued for row in one.streams.values()
    }
    return [
        *warning_findings(case, store),
        *startup_findings(case, with_operations),
        *raised_versions(case, store),
        *operation_findings(case, enqueued),
        *p2p_findings(case, enqueued),
        *setting_findings(case, store),
        *transport_findings(case, store),
        *ras_findings(store),
    ]
