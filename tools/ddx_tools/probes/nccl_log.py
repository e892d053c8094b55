"""Probe `nccl_log`: what NCCL itself logged, from the set-up of communicators to the operations that were enqueued."""

from __future__ import annotations

import json

from ddx_tools.hosts.base import Host
from ddx_tools.model import ProbeStatus
from ddx_tools.nccl.analyse import nccl_findings
from ddx_tools.nccl.material import live_job, material_rows, read_paths
from ddx_tools.nccl.table import communicator_rows
from ddx_tools.probe import Probe, ProbeArgs, Raw
from ddx_tools.probes.jobs import find_jobs, select_job


class NcclLogArgs(ProbeArgs):
    """The target: logs of NCCL (NCCL_DEBUG=INFO), output of `ncclras`, directories of them, or a pid of a live job."""


def capture(host: Host, args: NcclLogArgs) -> Raw:
    """Read files with lines of NCCL, or output of RAS, wherever they are; other files are left to other probes."""
    raw = Raw(host.name)
    paths = [item for item in args.target if not item.isdigit()]
    if paths:
        read_paths(host, raw, paths)
    else:
        live_job(host, raw, select_job(find_jobs(json.loads(host.processes().data)), args.target))
    if not raw.items:
        raw.status = ProbeStatus.NO_DATA
    return raw


PROBE: Probe[NcclLogArgs] = Probe(
    id="nccl_log",
    title="NCCL's own log",
    description="Read what NCCL logged (NCCL_DEBUG=INFO or WARN of 2.18 to 2.30, one file for all ranks or one for "
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
    parse=material_rows,
    table=communicator_rows,
    most_rows=60,
    rest="keep the material (--save BUNDLE) and name fewer files",
    examples={
        "nccl.*.log": "one file for each process, as NCCL_DEBUG_FILE=nccl.%h.%p.log makes them",
        "slurm-4242.out": "the output of all ranks in one file, labels and colours included",
        "logs/ ras.txt": "a directory, and what `ncclras -v` printed while the job hung",
        "4242 --json": "a live job: the files that its ranks log to",
    },
    analyse=nccl_findings,
)
