"""All that was learned of the network, as findings."""

from __future__ import annotations

from ddx_tools.machine.seen import read_facts
from ddx_tools.machine.unanswered import owners_of_addresses
from ddx_tools.model import Finding
from ddx_tools.nccl.ras_findings import ras_findings
from ddx_tools.network.check import read_checks
from ddx_tools.network.flows import flow_findings
from ddx_tools.network.path import path_findings
from ddx_tools.network.reach import reach_findings
from ddx_tools.network.speed import speed_findings
from ddx_tools.store import Store


def network_findings(store: Store) -> list[Finding]:
    """Findings of `network_checks`, `network_flows` and, as far as it was asked, of NCCL's RAS."""
    checks = read_checks(store)
    return [
        *reach_findings(checks, _hosts(store) if checks else {}),
        *path_findings(checks),
        *speed_findings(checks),
        *flow_findings(store),
        *ras_findings(store),
    ]


def _hosts(store: Store) -> dict[str, str]:
    """The hosts that were looked at, by their names and addresses."""
    names = store.query("SELECT DISTINCT host FROM host_facts WHERE host IS NOT NULL")
    return {row["host"]: row["host"] for row in names} | owners_of_addresses(read_facts(store))
