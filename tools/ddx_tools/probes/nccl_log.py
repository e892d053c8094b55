"""Probe `nccl_log`: what NCCL itself logged, from the set-up of communicators to the operations that were enqueued."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ddx_tools.model import Finding, ProbeStatus
from ddx_tools.probe import Probe, ProbeArgs, Raw, Rows
from ddx_tools.sources.hosts.base import Host

if TYPE_CHECKING:
    from ddx_tools.store import Store


class NcclLogArgs(ProbeArgs):
    """The target: logs of NCCL (NCCL_DEBUG=INFO), output of `ncclras`, directories of them, or a pid of a live job."""


def capture(host: Host, args: NcclLogArgs) -> Raw:
    """Read files with lines of NCCL, or output of RAS, wherever they are; other files are left to other probes."""
    from ddx_tools.job_target import select_job
    from ddx_tools.nccl.material import live_job, read_paths
    from ddx_tools.parsers.launchers.launchers import find_jobs

    raw = Raw(host.name)
    paths = [item for item in args.target if not item.isdigit()]
    if paths:
        read_paths(host, raw, paths)
    else:
        live_job(host, raw, select_job(find_jobs(json.loads(host.processes().data)), args.target))
    if not raw.items:
        raw.status = ProbeStatus.NO_DATA
    return raw


def parse(raw: Raw) -> Rows:
    """Rows of all tables whose names begin with `nccl_`."""
    from ddx_tools.nccl.material import material_rows

    return material_rows(raw)


def analyse(store: Store) -> list[Finding]:
    """Where processes differ, what never completed, and what NCCL warned of."""
    from ddx_tools.nccl.analyse import nccl_findings

    return nccl_findings(store)


def table(store: Store) -> list[dict[str, Any]]:
    """A row for each communicator and rank."""
    from ddx_tools.nccl.table import communicator_rows

    return communicator_rows(store)


PROBE: Probe[NcclLogArgs] = Probe(
    id="nccl_log",
    title="NCCL's own log",
    description="Reads what NCCL logged (NCCL_DEBUG=INFO or WARN of 2.18 to 2.30, one file for all ranks or one for "
    "each; with NCCL_DEBUG_SUBSYS=INIT,ENV,NET,GRAPH,COLL also operations) and what `ncclras` printed: which ranks "
    "never finished setting up a communicator, which GPU, network and transports each uses, where hosts differ in "
    "version, settings or GPUDirect, which rank enqueued another operation, size or data type than its peers, or "
    "fewer; and what NCCL warned of. The log tells what was enqueued, never what ended.",
    args=NcclLogArgs,
    finding_codes=(
        "startup.communicator_incomplete",
        "startup.versions_differ",
        "startup.interface_unusable",
        "startup.endpoint_unreachable",
        "startup.environment_missing",
        "device.duplicate",
        "device.invalid",
        "device.unavailable",
        "transport.chosen",
        "transport.downgraded",
        "transport.without_gpudirect",
        "config.differs",
        "config.suspicious",
        "network.completion_error",
        "network.connection_failed",
        "network.link_down",
        "network.gid_suspect",
        "collective.operation_mismatch",
        "collective.shape_mismatch",
        "collective.dtype_mismatch",
        "collective.root_mismatch",
        "collective.missing_ranks",
        "collective.connection_lost",
        "p2p.circular_wait",
        "p2p.unmatched",
        "limits.shm_full",
        "limits.locked_memory",
        "limits.resource",
        "gpu.memory_error",
        "gpu.off_bus",
        "gpu.nvlink_error",
        "gpu.kernel_fault",
        "memory.cuda_oom",
        "host.acs_redirects",
        "host.iommu_on",
        "log.signature",
    ),
    capture=capture,
    parse=parse,
    table=table,
    most_rows=60,
    rest="keep the material (--save BUNDLE) and name fewer files",
    examples={
        "nccl.*.log": "one file for each process, as NCCL_DEBUG_FILE=nccl.%h.%p.log makes them",
        "slurm-4242.out": "the output of all ranks in one file, labels and colours included",
        "logs/ ras.txt": "a directory, and what `ncclras -v` printed while the job hung",
        "4242 --json": "a live job: the files that its ranks log to",
    },
    analyse=analyse,
)
