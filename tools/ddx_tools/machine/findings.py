"""All that is known of machines, as findings."""

from __future__ import annotations

from ddx_tools.machine.compare import comparison_findings
from ddx_tools.machine.container import container_findings
from ddx_tools.machine.fabric import fabric_findings
from ddx_tools.machine.gpu_ranks import with_ranks
from ddx_tools.machine.gpus import gpu_findings
from ddx_tools.machine.held_processes import held_process_findings
from ddx_tools.machine.interface_choice import interface_findings
from ddx_tools.machine.job_gpus import job_gpu_findings
from ddx_tools.machine.kernel import kernel_findings
from ddx_tools.machine.limits import limit_findings
from ddx_tools.machine.loss import loss_findings
from ddx_tools.machine.packages import package_findings
from ddx_tools.machine.pcie import link_width_findings
from ddx_tools.machine.scheduler import scheduler_findings
from ddx_tools.machine.seen import Seen, read_facts
from ddx_tools.machine.sockets import socket_findings
from ddx_tools.machine.unanswered import unanswered_findings
from ddx_tools.model import Finding
from ddx_tools.store import Store


def machine_findings(store: Store) -> list[Finding]:
    """Findings of `host_facts`."""
    facts = read_facts(store)
    return [*held_process_findings(store, facts), *with_ranks(store, findings_of_facts(facts))]


def findings_of_facts(facts: list[Seen]) -> list[Finding]:
    """What facts of any number of machines amount to."""
    return [
        *kernel_findings(facts),
        *gpu_findings(facts),
        *job_gpu_findings(facts),
        *limit_findings(facts),
        *container_findings(facts),
        *fabric_findings(facts),
        *interface_findings(facts),
        *loss_findings(facts),
        *socket_findings(facts),
        *unanswered_findings(facts),
        *link_width_findings(facts),
        *package_findings(facts),
        *scheduler_findings(facts),
        *comparison_findings(facts),
    ]
