"""Probe `host`: one read-only look at a machine, or at the texts that somebody brought of one."""

from __future__ import annotations

from pydantic import Field

from ddx_tools.probes.declaration import Later, Probe, ProbeArgs
from ddx_tools.sources.host import Host
from ddx_tools.sources.raw import Raw, Rows, merge_rows


class HostArgs(ProbeArgs):
    """Arguments of `host`."""

    target: list[str] = Field(
        default_factory=list,
        description="Nothing: this machine and the job on it. A pid: this machine as that process sees it. Or files "
        "with outputs of commands (df, lspci, nvidia-smi, dmesg, …), and directories of such files.",
    )
    interval_s: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="Seconds between two readings of counters (packets, retransmissions, CPU quota); 0: one reading.",
    )


def capture(host: Host, args: HostArgs) -> Raw:
    """Look at the machine; or keep the files that hold a text of one, and leave all others alone."""
    from ddx_tools.probes.host.capture import look, read_files

    if args.paths:
        return read_files(host, args.paths)
    return look(host, [int(pid) for pid in args.target], args.interval_s)


def parse(raw: Raw) -> Rows:
    """Rows of `host_facts`."""
    from ddx_tools.probes.host.capture import text_rows
    from ddx_tools.probes.host.capture_rows import looked_rows

    return merge_rows([text_rows(raw), looked_rows(raw)])


PROBE = Probe(
    id="host",
    title="Machines",
    description=(
        "Looks once at this machine, changing nothing: GPUs by NVML (errors, clocks, links, who holds memory), the "
        "kernel's log, shared and locked memory, limits of the container with its kills for memory and its CPU quota, "
        "interfaces and which of them NCCL and Gloo take, what the host's name resolves to, RDMA ports, packets lost "
        "between two readings, connections whose bytes nobody reads. Says what cannot be known here apart from what is "
        "well. Or reads what commands print about a machine, as people paste it: dmesg, journalctl -k, nvidia-smi with "
        "-q, topo -m and nvlink, df, free, ulimit, lspci -vvv, ibstat, ibv_devinfo, show_gids, perfquery, ip, ss, "
        "ethtool, ps, sacct, scontrol, kubectl describe pod, and saved /metrics pages of dcgm-exporter, GPUd, "
        "node_exporter and NCCL Inspector; several may stand in one file. Of several hosts it names the odd one."
    ),
    args=HostArgs,
    capture=capture,
    parse=parse,
    recognises={"machine text": Later("ddx_tools.probes.host.text_rows:recognises")},
    rests_on=("host_facts",),
    analyse=Later("ddx_tools.probes.host.findings:machine_findings"),
    table=Later("ddx_tools.probes.host.table:fact_table"),
    most_rows=60,
    rest="name fewer files, or ask the evidence store: SELECT * FROM host_facts",
    examples={
        "": "this machine, and the job on it",
        "48213": "this machine as the process 48213 sees it",
        "host.txt": "a file into which somebody pasted outputs of df, nvidia-smi, ibstat, dmesg, …",
        "node1.txt node2.txt": "two machines, to compare their MTU, links and GPUs",
        "diagnostics/ --json": "all such texts below a directory, as JSON",
    },
)
