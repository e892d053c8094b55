"""Probe `nccl_log`: NCCL's own log, from the set-up of communicators to the enqueued operations."""

from __future__ import annotations

from pydantic import Field

from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.probes.declaration import Later, Probe, ProbeArgs
from ddx_tools.sources.host import Host
from ddx_tools.sources.raw import Raw


class NcclLogArgs(ProbeArgs):
    """Arguments of `nccl_log`. The target: NCCL logs (NCCL_DEBUG=INFO), output of `ncclras`, files of NCCL Inspector,
    directories of them, or a pid of a live job."""

    among_others: bool = Field(
        False, description="Other hosts have ranks of the job too: only two hosts ask NCCL's RAS, for all ranks."
    )


def capture(host: Host, args: NcclLogArgs) -> Raw:
    """Capture files of NCCL, RAS and NCCL Inspector among the target; leave other files to other probes."""
    from ddx_tools.probes.nccl_log.live_ras import ask_job
    from ddx_tools.probes.nccl_log.material import live_job, read_paths
    from ddx_tools.sources.job_target import job_on

    raw = Raw(host.name)
    if args.paths:
        read_paths(host, raw, args.paths)
    else:
        job = job_on(host, args.target)
        live_job(host, raw, job)
        ask_job(host, raw, job, among_others=args.among_others)
    if not raw.items:
        raw.status = ProbeStatus.NO_DATA
    return raw


PROBE: Probe[NcclLogArgs] = Probe(
    id="nccl_log",
    title="NCCL's own log",
    description="Reads NCCL's log (NCCL_DEBUG=INFO or WARN, NCCL 2.18 to 2.30, one file for all ranks or one per "
    "rank; with NCCL_DEBUG_SUBSYS=INIT,ENV,NET,GRAPH,COLL also operations) and the output of `ncclras`: which ranks "
    "never finished setting up a communicator, which GPU, network and transports each uses, where hosts differ in "
    "version, settings or GPUDirect, which rank enqueued a different operation, size or data type than its peers, or "
    "fewer operations; and NCCL's warnings. The log shows what was enqueued, never what finished. The JSON lines of "
    "NCCL Inspector (2.28 to 2.30) show that: which ranks have not finished a collective that their peers finished.",
    args=NcclLogArgs,
    recognises={"nccl inspector": Later("ddx_tools.parsers.nccl.nccl_inspector:recognises")},
    shell_only=frozenset({"among_others"}),
    capture=capture,
    parse=Later("ddx_tools.probes.nccl_log.material:material_rows"),
    table=Later("ddx_tools.probes.nccl_log.table:communicator_rows"),
    most_rows=60,
    rest="keep the material (--save BUNDLE) and name fewer files",
    examples={
        "nccl.*.log": "one file per process, from NCCL_DEBUG_FILE=nccl.%h.%p.log",
        "slurm-4242.out": "the output of all ranks in one file, labels and colours included",
        "logs/ ras.txt": "a directory, and the output of `ncclras -v` from during the hang",
        "4242 --json": "a live job: its ranks' log files, and NCCL's RAS report on all ranks",
    },
    analyse=Later("ddx_tools.probes.nccl_log.analyse:nccl_findings"),
)
